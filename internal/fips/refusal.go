package fips

// Refusals of what a FIPS deployment may not use (the module's own are beside it).
const (
	LocalKey     = "KEY_LOCAL_FORBIDDEN_IN_FIPS" // this process or a sealed file holds the key
	NoProvenance = "PROVENANCE_MISSING"          // nobody has signed where the key comes from
	NonApproved  = "DEP_NON_APPROVED_ALGORITHM"  // what is connected asks for one
)

// Refused says what a FIPS deployment refuses. A person must mend it.
type Refused struct {
	Code     string
	Sentence string // bounded; holds no secret
}

func (r *Refused) Error() string { return r.Code + ": " + r.Sentence }
