//go:build !linux

package localstack

import "syscall"

// sysProcAttr puts the child into its own group, so that a Ctrl-C in the
// terminal reaches us alone. Only Linux can tie its life to ours.
func sysProcAttr(a *account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: a.credential(), Setpgid: true}
}

// kill ends the process; PostgreSQL's children end when they see it gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}
