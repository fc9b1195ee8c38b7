package config

import (
	"regexp"
	"time"
)

// Worker is the file of `nightwarrant worker exec`.
type Worker struct {
	FIPS
	Authority string `yaml:"authority"`  // its issuer
	RootsFile string `yaml:"roots_file"` // PEM, for the authority; the system's roots when empty
	Client    string `yaml:"client"`     // name of the registered product
	Identity
	Queue   WorkerQueue `yaml:"queue"`
	Command Command     `yaml:"command"`
}

// WorkerQueue is where references come from. After Check, Password is set where PasswordFile names one.
type WorkerQueue struct {
	URL          string `yaml:"url"`       // several joined by commas
	Reference    string `yaml:"reference"` // of the role's queue, as admin nats-config names it
	User         string `yaml:"user"`
	PasswordFile string `yaml:"password_file"`
	Password     Secret
	RootsFile    string `yaml:"roots_file"` // PEM; the system's roots when empty
}

// Command is how the command is run. Its words stand on the command line.
type Command struct {
	Dir         string   `yaml:"dir"`          // where it works; where the worker does when empty
	Pass        []string `yaml:"pass"`         // names of variables beside the usual ones
	Secrets     []string `yaml:"secrets"`      // names that pass although they read like a secret's
	SocketDir   string   `yaml:"socket_dir"`   // absolute and short; a folder is made in it for each socket
	OutputDir   string   `yaml:"output_dir"`   // absolute; what commands print is kept there
	MaxOutput   int64    `yaml:"max_output"`   // bytes that are kept of one
	Grace       Duration `yaml:"grace"`        // from being asked to end until it is killed
	WhenWaiting string   `yaml:"when_waiting"` // for its owner's decision: end or block
	UID         int64    `yaml:"uid"`          // account of the command; the worker's when 0
	GID         int64    `yaml:"gid"`
}

var queueForm = regexp.MustCompile(`^[A-Za-z0-9_-]{22}$`)

const (
	maxSocketDir = 60 // bytes: a socket's whole path has 107
	maxAccount   = 1<<32 - 2
)

// Check implements Document.
func (w *Worker) Check(func(string) string) error {
	return first(
		w.FIPS.check(),
		Origin("authority", w.Authority),
		w.Identity.check(),
		w.Queue.check(),
		w.Command.check(),
	)
}

func (q *WorkerQueue) check() (err error) {
	if !queueForm.MatchString(q.Reference) {
		return Wrong("queue.reference", "must be the 22 characters that nightwarrant admin nats-config names")
	}
	if (q.User == "") != (q.PasswordFile == "") {
		return Wrong("queue.user", "and queue.password_file must be given both or neither")
	}
	if q.PasswordFile != "" {
		if q.Password, err = ReadSecret(q.PasswordFile); err != nil {
			return Wrong("queue.password_file", "%s", err)
		}
	}
	return eachURL("queue.url", q.URL, "nats", "tls")
}

func (c *Command) check() error {
	if c.SocketDir == "" {
		c.SocketDir = "/tmp"
	}
	if len(c.SocketDir) > maxSocketDir {
		return Wrong("command.socket_dir", "must have at most %d bytes", maxSocketDir)
	}
	if c.WhenWaiting == "" {
		c.WhenWaiting = "end"
	}
	if c.WhenWaiting != "end" && c.WhenWaiting != "block" {
		return Wrong("command.when_waiting", "must be end or block")
	}
	if (c.UID == 0) != (c.GID == 0) {
		return Wrong("command.uid", "and command.gid must be given both or neither")
	}
	return first(
		absolute("command.socket_dir", c.SocketDir),
		absolute("command.output_dir", c.OutputDir),
		between("command.max_output", &c.MaxOutput, 1<<20, 1, 1<<30),
		within("command.grace", &c.Grace, 5*time.Second, 10*time.Millisecond, time.Minute),
		between("command.uid", &c.UID, c.UID, 0, maxAccount),
		between("command.gid", &c.GID, c.GID, 0, maxAccount),
	)
}
