package demo

import (
	"github.com/nightwarrant/nightwarrant/internal/dev"
)

// Measured is what a benchmark must reach on a running stack that nobody else may.
type Measured struct {
	Issuer  *dev.Issuer // signs as the stack's workload issuer does
	Replica string      // the first replica's own address, past the proxy
	PID     int         // of that replica
	Server  string      // the administrator's URL of the server's database `postgres`
	Store   string      // and of the authority's database
}

// Measured opens the stack to a benchmark. The stack must have been started.
func (s *Stack) Measured() (m Measured, err error) {
	m = Measured{Replica: local(s.ports.ReplicaA), PID: s.children["replica-a"].command.Process.Pid,
		Server: s.adminURL("postgres"), Store: s.adminURL(s.database())}
	m.Issuer, err = s.workloads()
	return m, err
}

// workloads signs as the stack's workload issuer does, with the key that it keeps.
func (s *Stack) workloads() (*dev.Issuer, error) {
	return dev.NewIssuer(local(s.ports.Workloads), "ES256", s.path("issuer"))
}
