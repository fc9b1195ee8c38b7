package client_test

import (
	"context"
	"log"
	"net/http"
	"os/signal"
	"syscall"

	"github.com/nightwarrant/nightwarrant/readiness/client"
)

// A product accepts no new unattended work while the platform is closed. What it
// has begun goes on: the authority judges each step of it.
func Example() {
	readiness, err := client.New(client.Config{Issuer: "https://authority.example"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go readiness.Run(ctx)

	http.HandleFunc("POST /orders/recurring", func(w http.ResponseWriter, _ *http.Request) {
		if s := readiness.State(); !s.Open() {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Unattended work is not accepted now.", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}
