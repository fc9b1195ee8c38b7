package server

import "golang.org/x/time/rate"

// LimitQuestions lets a server answer n questions about readiness, and no more.
func LimitQuestions(s *Server, n int) { s.questions = rate.NewLimiter(0, n) }
