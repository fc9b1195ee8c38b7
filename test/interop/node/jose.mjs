// jose makes the proofs by hand, and verifies our capabilities against the published keys.
import { createHash, randomUUID } from 'node:crypto'
import * as jose from 'jose'
import { env, step, expect } from './steps.mjs'
import { work } from './proofs.mjs'

let jkt // of the first key
const worker = await work(async () => {
  const { publicKey, privateKey } = await jose.generateKeyPair('ES256')
  const jwk = await jose.exportJWK(publicKey)
  jkt ??= await jose.calculateJwkThumbprint(jwk)
  return (url, method, nonce, token) =>
    new jose.SignJWT({ htm: method, htu: url, jti: randomUUID(), ...(nonce && { nonce }), ...(token && { ath: createHash('sha256').update(token).digest('base64url') }) })
      .setProtectedHeader({ alg: 'ES256', typ: 'dpop+jwt', jwk })
      .setIssuedAt()
      .sign(privateKey)
})

await step('validators', async () => {
  const tokens = await worker.tokens()
  const keys = jose.createRemoteJWKSet(new URL(tokens.jwks))
  const verify = (token, audience) => jose.jwtVerify(token, keys, { issuer: env.issuer, audience, typ: 'at+jwt', algorithms: ['ES256'], requiredClaims: ['client_id', 'jti', 'sub', 'cnf'] })
  const { payload } = await verify(tokens.effect, env.guard)
  expect(payload.cnf.jkt === jkt, 'the capability is bound to another key')
  await verify(tokens.run, env.issuer)
  const [head, body, signature] = tokens.effect.split('.')
  const later = Buffer.from(JSON.stringify({ ...payload, exp: payload.exp + 600 })).toString('base64url')
  const refusals = []
  for (const bad of [[head, later, signature].join('.'), tokens.run]) {
    await verify(bad, env.guard).then(
      () => expect(false, 'a bad capability was accepted'),
      (error) => refusals.push(error.code),
    )
  }
  expect(refusals[0] === 'ERR_JWS_SIGNATURE_VERIFICATION_FAILED' && refusals[1] === 'ERR_JWT_CLAIM_VALIDATION_FAILED', String(refusals))
})
await worker.settle()
