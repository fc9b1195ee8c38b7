package api

import "time"

// Deployment is what the authority knows of its own processes and keys, as an
// auditor reads it. What a process has not said of itself is empty.
type Deployment struct {
	At        time.Time `json:"at"` // by the database's clock
	Identity  Identity  `json:"identity"`
	Replicas  []Replica `json:"replicas"` // at most a thousand
	Uncertain Uncertain `json:"uncertain"`
}

// Identity is the registered public identity of the cluster; its binary values are base64url.
type Identity struct {
	Cluster  string `json:"cluster"`
	AuditKey string `json:"audit_key"` // Ed25519, of the audit log
	// Generations of the keys, newest first, with those that are over. One is current.
	Generations []Generation `json:"generations"`
}

// Replica is one process that reported within a day: of the authority, of the
// scheduler, or of a component.
type Replica struct {
	Kind      string    `json:"kind"`
	Component string    `json:"component,omitempty"` // its registered name
	Instance  string    `json:"instance"`            // digest of its name
	Boot      int64     `json:"boot"`
	Since     time.Time `json:"since"` // it booted
	Seen      time.Time `json:"seen"`  // it looked at what it reported last
	Live      bool      `json:"live"`  // a report of it counts now
	Build     *Build    `json:"build,omitempty"`
	// BuildSince is when this instance first ran this executable, without another one in between.
	BuildSince *time.Time `json:"build_since,omitempty"`
}

// Generation is one generation of the cluster's keys.
type Generation struct {
	Generation  int64      `json:"generation"`
	State       string     `json:"state"` // next, current, previous, retired, withdrawn or cut_off
	KeyID       string     `json:"kid"`
	Provenance  string     `json:"provenance"` // digest of the record of where the key is from
	PublishedAt time.Time  `json:"published_at"`
	ActivatedAt *time.Time `json:"activated_at,omitempty"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	Replicas    int64      `json:"replicas"` // of the authority that report
	Lacking     int64      `json:"lacking"`  // of them, that have not proved to hold it
}

// Uncertain counts the ambiguous effects of which nobody has recorded what was found.
type Uncertain struct {
	Effects int64      `json:"effects"` // up to ten thousand
	Oldest  *time.Time `json:"oldest,omitempty"`
}
