package jwks

// Fault says why a token or a key was refused. It is a finite list: a fault
// never carries text from the token.
type Fault string

// The faults.
const (
	Malformed       Fault = "it is not a well-formed signed token"
	UntrustedIssuer Fault = "its issuer is not configured"
	UnknownKey      Fault = "its issuer publishes no usable key of that name"
	BadSignature    Fault = "its signature does not verify"
	Expired         Fault = "it has expired or is older than allowed"
	NotYetValid     Fault = "it is not valid yet"
	TooLong         Fault = "its lifetime is longer than allowed"
	WrongAudience   Fault = "it is not addressed to this authority alone"
	Unavailable     Fault = "its issuer's keys could not be refreshed in time"
)

func (f Fault) Error() string { return string(f) }
