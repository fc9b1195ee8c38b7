// npm's dpop makes the proofs.
import * as DPoP from 'dpop'
import { work } from './proofs.mjs'

const worker = await work(async () => {
  const pair = await DPoP.generateKeyPair('ES256')
  return (url, method, nonce, token) => DPoP.generateProof(pair, url, method, nonce, token)
})
await worker.settle()
