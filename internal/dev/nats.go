package dev

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/localstack"
)

// NATS is the file of `nightwarrant dev-nats`: a queue in a process of its own,
// which can be killed and started again on the same ports and files.
type NATS struct {
	Port        int64  `yaml:"port"`         // of 127.0.0.1
	MonitorPort int64  `yaml:"monitor_port"` // of 127.0.0.1, for /varz and /jsz
	Dir         string `yaml:"dir"`          // JetStream's files
	Lazy        bool   `yaml:"lazy"`         // acknowledges before it syncs: a fault, to be noticed by others
	Users       []User `yaml:"users"`
}

// User is one user and the subjects it may use; an empty list allows nothing.
type User struct {
	Name      string        `yaml:"name"`
	Password  config.Secret `yaml:"password"`
	Publish   []string      `yaml:"publish"`
	Subscribe []string      `yaml:"subscribe"`
}

// Check implements config.Document.
func (n *NATS) Check(func(string) string) error {
	for key, port := range map[string]int64{"port": n.Port, "monitor_port": n.MonitorPort} {
		if port < 1 || port > 65535 {
			return config.Wrong(key, "must be a port between 1 and 65535")
		}
	}
	switch {
	case n.Port == n.MonitorPort:
		return config.Wrong("monitor_port", "must be another than port")
	case n.Dir == "":
		return config.Wrong("dir", "is missing")
	case len(n.Users) == 0:
		return config.Wrong("users", "is missing: the server is open to nobody")
	}
	for i, u := range n.Users {
		if u.Name == "" || u.Password == "" {
			return config.Wrong(fmt.Sprintf("users[%d]", i), "needs a name and a password")
		}
	}
	return nil
}

func (n *NATS) users() []localstack.NATSUser {
	all := make([]localstack.NATSUser, len(n.Users))
	for i, u := range n.Users {
		all[i] = localstack.NATSUser{Name: u.Name, Password: u.Password.Reveal(), Publish: u.Publish, Subscribe: u.Subscribe}
	}
	return all
}

const natsWithin = 20 * time.Second // to read what an earlier life has left

// RunNATS runs the server until ctx ends.
func RunNATS(ctx context.Context, n *NATS, log *slog.Logger) error {
	starting, cancel := context.WithTimeout(ctx, natsWithin)
	defer cancel()
	server, err := localstack.StartNATS(starting, localstack.NATSOptions{Dir: n.Dir, Users: n.users(), Port: int(n.Port), Monitor: int(n.MonitorPort),
		Lazy: n.Lazy, Logs: log.Handler()})
	if err != nil {
		return err
	}
	log.LogAttrs(ctx, slog.LevelInfo, "queueing", slog.Int64("port", n.Port), slog.Bool("lazy", n.Lazy))
	<-ctx.Done()
	server.Stop()
	return nil
}
