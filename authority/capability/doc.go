// Package capability holds the tokens and proofs of the authority: capabilities (RFC 9068 access tokens bound to a key),
// the DPoP proofs of that key (RFC 9449), and the effects that capabilities name.
//
// Names: Parse* reads a form, Clear* holds it against what is expected, Verify* is cryptography; Check* does all that
// there is to do. Nothing here keeps state: nonces and replay belong to the authority.
package capability
