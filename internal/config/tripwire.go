package config

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
)

// Tripwire is the file of `nightwarrant tripwire`.
type Tripwire struct {
	Authority string         `yaml:"authority"` // its issuer
	Replicas  []string       `yaml:"replicas"`  // their origins, past whatever stands in front
	Admin     []string       `yaml:"admin"`     // origins of admin listeners
	Operator  Holder         `yaml:"operator"`  // who registers what the audit needs, and retires it
	Member    Holder         `yaml:"member"`    // who owns its task
	Workload  Holder         `yaml:"workload"`  // that runs it
	Second    Holder         `yaml:"second"`    // another pod of the same workload
	Stranger  Holder         `yaml:"stranger"`  // a workload of a trusted issuer that is registered nowhere
	Profile   string         `yaml:"profile"`   // registered, that accepts the workload; the audit registers one when empty
	Guard     TripwireGuard  `yaml:"guard"`
	Gate      TripwireGate   `yaml:"gate"`
	Hosts     []TripwireHost `yaml:"hosts"`
	Logs      []string       `yaml:"logs"` // folders
	FIPS
}

// Holder is somebody with a token and the key that owns it.
type Holder struct {
	TokenFile string `yaml:"token_file"` // envelope or assertion, read anew each time
	KeyFile   string `yaml:"key_file"`   // made on first use
}

// TripwireGuard is a registered guard, and what may be tried at it.
type TripwireGuard struct {
	Name    string `yaml:"name"`
	URI     string `yaml:"uri"`
	Pod     Holder `yaml:"pod"`     // another pod of it
	Granted Tried  `yaml:"granted"` // harmless if it happens
	Denied  Tried  `yaml:"denied"`
}

// Tried is an effect. After Check, Parameters is JSON.
type Tried struct {
	Action     string `yaml:"action"`
	Resource   string `yaml:"resource"`
	Parameters string `yaml:"parameters"` // JSON
}

// TripwireGate is how admission is closed, where that is agreed to.
type TripwireGate struct {
	DatabaseURLFile string `yaml:"database_url_file"` // of nw_operator
}

// TripwireHost is a machine, and what listens on it.
type TripwireHost struct {
	Host  string  `yaml:"host"`
	From  int64   `yaml:"from"` // ports that are tried; 1 when absent
	To    int64   `yaml:"to"`   // 65535 when absent
	Ports []int64 `yaml:"ports"`
}

// Check implements Document.
func (t *Tripwire) Check(func(string) string) error {
	err := first(
		Origin("authority", t.Authority),
		origins("replicas", t.Replicas),
		origins("admin", t.Admin),
		t.Operator.check("operator", true),
		t.Member.check("member", true),
		t.Workload.check("workload", true),
		t.Second.check("second", false),
		t.Stranger.check("stranger", false),
		t.Guard.check(),
		t.FIPS.check(),
	)
	for i := range t.Hosts {
		err = first(err, t.Hosts[i].check(fmt.Sprintf("hosts[%d]", i)))
	}
	for i, dir := range t.Logs {
		if !filepath.IsAbs(dir) {
			err = first(err, Wrong(fmt.Sprintf("logs[%d]", i), "must be an absolute path"))
		}
	}
	return err
}

// origins checks where processes are reached directly: what they are asked there is no secret, and TLS may end in front of them.
func origins(key string, all []string) error {
	for i, o := range all {
		if u, err := url.Parse(o); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.String() != u.Scheme+"://"+u.Host {
			return Wrong(fmt.Sprintf("%s[%d]", key, i), "must be an origin: http or https, a host and a port")
		}
	}
	return nil
}

func (h *Holder) check(key string, needed bool) error {
	if h.TokenFile == "" && h.KeyFile == "" && !needed {
		return nil
	}
	return first(required(key+".token_file", h.TokenFile), required(key+".key_file", h.KeyFile))
}

func (g *TripwireGuard) check() error {
	return first(
		required("guard.name", g.Name),
		required("guard.uri", g.URI),
		g.Pod.check("guard.pod", false),
		g.Granted.check("guard.granted"),
		g.Denied.check("guard.denied"),
	)
}

func (t *Tried) check(key string) error {
	if !json.Valid([]byte(t.Parameters)) {
		return Wrong(key+".parameters", "must be JSON")
	}
	return first(required(key+".action", t.Action), required(key+".resource", t.Resource))
}

func (h *TripwireHost) check(key string) error {
	if h.From == 0 {
		h.From = 1
	}
	if h.To == 0 {
		h.To = 65535
	}
	if h.From < 1 || h.From > h.To || h.To > 65535 {
		return Wrong(key+".from", "and to must be ports, the lower one first")
	}
	for _, p := range h.Ports {
		if p < h.From || p > h.To {
			return Wrong(key+".ports", "must lie between from and to")
		}
	}
	return required(key+".host", h.Host)
}
