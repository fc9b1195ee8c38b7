package demo

import "syscall"

// dieWithParent ends a child when this process ends, however that ends.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
