package config

import (
	"fmt"
	"path/filepath"
)

const maxPaths = 16

// Disk says which file systems must have room left. Without a path none is watched.
type Disk struct {
	Paths          []string `yaml:"paths"`            // absolute; each stands for the file system that it is on
	MinFreeMB      int64    `yaml:"min_free_mb"`      // of 2^20 bytes
	MinFreePercent int64    `yaml:"min_free_percent"` // of the file system's bytes, and of its files
}

func (d *Disk) check() error {
	if len(d.Paths) > maxPaths {
		return Wrong("disk.paths", "may be at most %d", maxPaths)
	}
	for i, path := range d.Paths {
		if !filepath.IsAbs(path) {
			return Wrong(fmt.Sprintf("disk.paths[%d]", i), "must be an absolute path")
		}
	}
	return first(
		between("disk.min_free_mb", &d.MinFreeMB, 512, 1, 1<<20),
		between("disk.min_free_percent", &d.MinFreePercent, 5, 1, 50),
	)
}
