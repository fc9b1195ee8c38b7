package config

import "time"

// Directory says who answers whether somebody is a member now.
type Directory struct {
	URL       string   `yaml:"url"`        // of a SCIM 2.0 service provider, whose externalIds are the envelopes' subjects
	TokenFile string   `yaml:"token_file"` // its bearer token; read anew for each question
	Timeout   Duration `yaml:"timeout"`    // of one question
	RootsFile string   `yaml:"roots_file"` // PEM; the system's roots when empty
}

func (d *Directory) check() error {
	if _, err := webURL("directory.url", d.URL); err != nil {
		return err
	}
	return first(
		required("directory.token_file", d.TokenFile),
		within("directory.timeout", &d.Timeout, 300*time.Millisecond, 10*time.Millisecond, 500*time.Millisecond),
	)
}
