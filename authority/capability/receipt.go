package capability

// SignReceipt signs the payload of a run receipt: typ nightwarrant-receipt+jwt, alg ES256 and the signer's kid in its header.
func SignReceipt(s Signer, payload []byte) (string, error) { return signJWS(s, aReceipt, payload) }

// VerifyReceipt verifies the signature of a run receipt, and returns its payload and its key's generation. A receipt does not
// expire, so nothing here looks at a clock. Every refusal is a *ProofError with CodeInvalidToken.
func VerifyReceipt(signed string, keys KeySet) (payload []byte, generation int64, err error) {
	return verifyJWS(signed, aReceipt, keys)
}
