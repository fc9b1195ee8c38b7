package teststack

import (
	"context"
	"io/fs"
	"testing/fstest"
)

// migrate and migrationFiles are the package migrations' Up and FS.
var (
	migrate        = func(ctx context.Context, url string) error { return nil }
	migrationFiles = func() fs.FS { return fstest.MapFS{} }
)
