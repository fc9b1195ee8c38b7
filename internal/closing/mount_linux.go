package closing

import "syscall"

// mount mounts a small file system of its own on a directory.
func mount(dir string) error { return syscall.Mount("tmpfs", dir, "tmpfs", 0, diskOptions) }

// unmount takes it away also while a server process still has a file of it open.
func unmount(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) }
