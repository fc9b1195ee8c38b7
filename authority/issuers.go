package authority

// Issuers lists the issuers of the attestation profiles that are active in the
// registry's copy, each as often as it is named.
func (a *Authority) Issuers() []string {
	profiles := a.registry.now().profiles
	issuers := make([]string, len(profiles))
	for i, p := range profiles {
		issuers[i] = p.Issuer
	}
	return issuers
}
