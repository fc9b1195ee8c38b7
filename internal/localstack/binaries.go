package localstack

import (
	"cmp"
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// MinPostgres is the oldest major version of PostgreSQL that nightwarrant runs on.
const MinPostgres = 15

// ErrNoPostgres says that no server binaries of PostgreSQL 15 or newer are installed.
var ErrNoPostgres = errors.New("no PostgreSQL 15 or newer server is installed: install it (Debian and Ubuntu: apt-get install postgresql) or put its bin directory on PATH")

// debianBinaries is where Debian and Ubuntu keep what they leave off PATH.
const debianBinaries = "/usr/lib/postgresql/*/bin"

// FindPostgres returns the directory of the server binaries to use and their
// version line: those on PATH, else the newest that Debian's layout has. The
// error is ErrNoPostgres.
func FindPostgres() (dir, version string, err error) {
	var onPath []string
	if postgres, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(postgres); err == nil {
			onPath = append(onPath, filepath.Dir(real))
		}
	}
	packaged, err := filepath.Glob(debianBinaries)
	if err != nil {
		return "", "", err
	}
	slices.SortFunc(packaged, func(a, b string) int { return cmp.Compare(packagedMajor(b), packagedMajor(a)) })
	return firstUsable(append(onPath, packaged...))
}

// packagedMajor reads 15 out of /usr/lib/postgresql/15/bin, or 0.
func packagedMajor(bin string) int {
	major, err := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	if err != nil {
		return 0
	}
	return major
}

func firstUsable(dirs []string) (dir, version string, err error) {
	for _, dir := range dirs {
		line, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output() //nolint:noctx // it prints a line and ends
		if err != nil || majorVersion(string(line)) < MinPostgres {
			continue
		}
		if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err == nil {
			return dir, string(line), nil
		}
	}
	return "", "", ErrNoPostgres
}

var versionLine = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d{1,4})\D`)

// majorVersion reads 15 out of "postgres (PostgreSQL) 15.13 (Debian …)", or 0.
func majorVersion(line string) int {
	match := versionLine.FindStringSubmatch(line)
	if match == nil {
		return 0
	}
	major, err := strconv.Atoi(match[1])
	if err != nil {
		return 0
	}
	return major
}
