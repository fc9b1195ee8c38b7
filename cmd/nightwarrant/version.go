package main

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/internal/fips"
	"github.com/nightwarrant/nightwarrant/migrations"
)

// build says what this binary is.
type build struct {
	Version       string `json:"version"`
	Revision      string `json:"revision,omitempty"` // of the source
	Modified      bool   `json:"modified,omitempty"` // since that revision
	Go            string `json:"go"`
	Platform      string `json:"platform"`
	GuardProtocol int    `json:"guard_protocol"`
	Synthetic     bool   `json:"synthetic,omitempty"` // takes a software token for a real one, and serves test clusters only
	Migrations    int    `json:"migrations"`          // files, which is the newest schema version
}

func (p program) version() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "version", Short: "Print what this binary is", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		b := thisBuild()
		return p.print(asJSON, b, func(text *strings.Builder) {
			fmt.Fprintf(text, "nightwarrant %s\nrevision %s\n%s %s\nguard protocol %d, schema version %d\n", b.Version, b.revision(), b.Go, b.Platform, b.GuardProtocol, b.Migrations)
			if b.Synthetic {
				text.WriteString("SYNTHETIC: takes a software token for a real one, and serves test clusters only\n")
			}
		})
	}}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

var executable = sync.OnceValues(builds.Running)

// thisProcess is what this process tells of itself. One that cannot read its own executable tells nothing, which no report takes for good.
func thisProcess(log *slog.Logger) builds.Build {
	b, err := executable()
	if err != nil {
		log.Warn("this process cannot say what it runs", "error", err)
	}
	return b
}

// told is a build as a guard reports it: nothing where it is not known.
func told(b builds.Build) *api.Build {
	if b.Binary == [32]byte{} {
		return nil
	}
	return &api.Build{BinarySHA256: base64.RawURLEncoding.EncodeToString(b.Binary[:]), Go: b.Go, Module: b.Module, FIPS: b.FIPS}
}

func thisBuild() build {
	b := build{Version: "(unknown)", Synthetic: fips.Synthetic, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, GuardProtocol: api.GuardProtocol}
	if files, err := fs.Glob(migrations.FS(), "*.sql"); err == nil {
		b.Migrations = len(files)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (b build) revision() string {
	switch {
	case b.Revision == "":
		return "unknown"
	case b.Modified:
		return b.Revision + ", modified"
	}
	return b.Revision
}
