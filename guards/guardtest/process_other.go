//go:build !linux

package guardtest

import "syscall"

func groupOfItsOwn() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func (c *command) live(started chan<- error) { c.wait(started) }

func (c *command) awaitStop() {}
