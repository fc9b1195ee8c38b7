package main

import (
	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/internal/config"
)

// tokenIssuers are the issuers of workloads as such.
func tokenIssuers(workloads []config.Workloads) (list []config.Issuer) {
	for _, w := range workloads {
		list = append(list, w.Issuer)
	}
	return list
}

// reviewsOf are the clusters that are asked further, by issuer.
func reviewsOf(workloads []config.Workloads) (map[string]attestation.Reviewer, error) {
	all := map[string]attestation.Reviewer{}
	for _, w := range workloads {
		c := w.TokenReview
		if c == (config.TokenReview{}) {
			continue
		}
		roots, err := rootsOf(c.RootsFile)
		if err != nil {
			return nil, config.Wrong("assertion.issuers", "has a token_review.roots_file that cannot be used: %s", err)
		}
		if all[w.URL], err = attestation.NewTokenReview(attestation.TokenReviewConfig{URL: c.URL, TokenFile: c.TokenFile, Roots: roots}); err != nil {
			return nil, config.Wrong("assertion.issuers", "has a token_review that cannot be used: %s", err)
		}
	}
	return all, nil
}
