package keys

import "slices"

// State is where a generation stands in the database.
type State string

// The states of a generation. The first three are in force.
const (
	Next      State = "next"     // published; verifies, and signs nothing yet
	Current   State = "current"  // signs
	Previous  State = "previous" // what it signed is still good
	Retired   State = "retired"
	Withdrawn State = "withdrawn" // it never signed
	CutOff    State = "cut_off"
)

// Registered is a generation as the database has it.
type Registered struct {
	Identity
	State State
}

// InForce tells that what the generation signed, or will sign, verifies.
func (r Registered) InForce() bool {
	return r.State == Next || r.State == Current || r.State == Previous
}

// Under arranges the bundle as the database says: the current generation signs,
// those in force verify, and all of them are published, whether this bundle
// holds them or not, so that every replica publishes the same bytes. It fails
// unless the bundle holds the current generation, and the others as registered
// where it has them (A11). A newer one that nobody has registered is not used.
func (b *Bundle) Under(registered []Registered) (*Bundle, error) {
	inForce := slices.DeleteFunc(slices.Clone(registered), func(r Registered) bool { return !r.InForce() })
	slices.SortFunc(inForce, func(x, y Registered) int {
		if x.State == Current || y.State != Current && x.Generation > y.Generation {
			return -1
		}
		return 1
	})
	if len(inForce) == 0 || inForce[0].State != Current {
		return nil, material("no key bundle is registered for this cluster: run `nightwarrant keys register` once", nil)
	}
	var holds []generation
	var published []verificationKey
	for _, r := range inForce {
		published = append(published, verificationKey{kid: r.KID, generation: r.Generation, public: r.PublicKey})
		g, ok := b.holds(r.Generation)
		if !ok && r.State != Current {
			continue
		}
		if err := g.prove(r.Identity); err != nil {
			return nil, err
		}
		holds = append(holds, g)
	}
	return b.arranged(holds, published)
}

// holds finds a generation, or gives the newest.
func (b *Bundle) holds(number int64) (generation, bool) {
	i := slices.IndexFunc(b.held, func(g generation) bool { return g.Generation == number })
	if i < 0 {
		return b.held[len(b.held)-1], false
	}
	return b.held[i], true
}

// arranged is the bundle with the first of these signing and all of them
// verifying.
func (b *Bundle) arranged(inForce []generation, published []verificationKey) (*Bundle, error) {
	out := &Bundle{held: b.held, auditor: b.auditor, current: inForce[0]}
	for _, g := range inForce {
		out.known = append(out.known, g.verification())
		out.nonces = append(out.nonces, nonceKey{g.nonce, g.Generation})
	}
	var err error
	if out.jwks, err = publish(published); err != nil {
		return nil, material("the verification keys cannot be published", err)
	}
	return out, nil
}

// Holds are the generations in force that the bundle has proved to hold.
func (b *Bundle) Holds() []int64 {
	out := make([]int64, len(b.known))
	for i, k := range b.known {
		out[i] = k.generation
	}
	return out
}

// Prepare makes the successor of the bundle in dir, in the directory to (new or
// empty): it holds the current generation and a next one, above newest, whose
// keys are made here or, with a host, are the one pair that the host serves and
// the bundle has not. Made already, it is opened and nothing is changed. It
// returns the next generation's identity. Every error is a *MaterialError.
func Prepare(dir, identityFile, to string, current, newest int64, host Host) (Identity, error) {
	return succeed(dir, identityFile, to, current, host, func(o opened) (halves, error) {
		if v, ok := host.(Vouched); ok && encode(v.ClusterID[:]) != o.public.ClusterID {
			return halves{}, material("the record of provenance is for another cluster", nil)
		}
		return newGeneration(max(newest, o.bundle.Newest().Generation)+1, host, o.kids()...)
	})
}

// Trim makes the successor of the bundle in dir that holds the current
// generation alone, so that keys which have ended lie nowhere any more. Made
// already, it is opened and nothing is changed. Every error is a *MaterialError.
func Trim(dir, identityFile, to string, current int64, host Host) (Identity, error) {
	return succeed(dir, identityFile, to, current, host)
}

func succeed(dir, identityFile, to string, current int64, host Host, next ...func(opened) (halves, error)) (Identity, error) {
	o, err := openAny(dir, identityFile, host)
	if err != nil {
		return Identity{}, err
	}
	i := slices.IndexFunc(o.all, func(h halves) bool { return h.public.Generation == current })
	if i < 0 {
		return Identity{}, material("the bundle does not hold the generation that signs", nil)
	}
	made, err := openAny(to, identityFile, host)
	if err == nil {
		if made.public.ClusterID != o.public.ClusterID || made.all[0].public != o.all[i].public || len(made.all) != 1+len(next) {
			return Identity{}, material("there is another bundle where the successor should be; a bundle is never overwritten", nil)
		}
		return made.bundle.Newest(), nil
	}
	var further []halves
	for _, of := range next {
		h, err := of(o)
		if err != nil {
			return Identity{}, err
		}
		further = append(further, h)
	}
	if err := o.write(to, o.all[i], further...); err != nil {
		return Identity{}, err
	}
	if made, err = openAny(to, identityFile, host); err != nil {
		return Identity{}, err
	}
	return made.bundle.Newest(), nil
}

// openAny opens a bundle with the host if it needs one.
func openAny(dir, identityFile string, host Host) (opened, error) {
	o, err := openParts(dir, identityFile, nil)
	if err != nil && host != nil {
		return openParts(dir, identityFile, host)
	}
	return o, err
}

func (o opened) kids() (out []string) {
	for _, h := range o.all {
		out = append(out, h.public.KID)
	}
	return out
}
