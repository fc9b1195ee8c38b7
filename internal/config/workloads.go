package config

import "path/filepath"

// Workloads is a token issuer of workloads.
type Workloads struct {
	Issuer
	TokenReview TokenReview `yaml:"token_review"`
}

// TokenReview says whom to ask whether a token of a Kubernetes cluster still stands; nobody when empty.
type TokenReview struct {
	URL       string `yaml:"url"`        // of the API server
	TokenFile string `yaml:"token_file"` // our own token for it, read anew each time
	RootsFile string `yaml:"roots_file"` // PEM; the system's roots when empty
}

func (w *Workloads) check(key string) error {
	if err := w.Issuer.check(key); err != nil || w.TokenReview == (TokenReview{}) {
		return err
	}
	key += ".token_review"
	if !filepath.IsAbs(w.TokenReview.TokenFile) {
		return Wrong(key+".token_file", "must be an absolute path")
	}
	return Origin(key+".url", w.TokenReview.URL)
}
