// openid-client, unmodified. It has no function for our grants: its generic grant request spells them. It asks again by itself when a nonce is wanted.
import * as client from 'openid-client'
import { env, step, expect, count, wire, tokenExchange, operation, claim, mint, effect, projected } from './steps.mjs'

const discover = async (id, authentication) => {
  const config = await client.discovery(new URL(env.issuer), id, undefined, authentication, {
    algorithm: 'oauth2',
    execute: [client.allowInsecureRequests], // plain http: only on loopback
    [client.customFetch]: wire.fetch,
  })
  config[client.customFetch] = wire.fetch
  return config
}

let authenticated, plain, key, DPoP, run
const minted = (name, using = DPoP) => client.genericGrantRequest(plain, tokenExchange, mint(run.access_token, name), { DPoP: using })
const resource = (token, url, body, using = DPoP) =>
  client.fetchProtectedResource(plain, token, new URL(url), 'POST', body, new Headers({ 'content-type': 'application/json' }), { DPoP: using })
async function applied(token, name) {
  const answer = await (await resource(token, operation, effect(name))).json()
  expect(answer.outcome === 'committed', JSON.stringify(answer))
}

await step('discovery', async () => {
  authenticated = await discover(env.client, projected(env.workerAssertion))
  plain = await discover(env.client, client.None())
  expect(plain.serverMetadata().supportsPKCE !== undefined && plain.serverMetadata().token_endpoint !== undefined, 'there is no token endpoint')
  key = await client.randomDPoPKeyPair('ES256')
  DPoP = client.getDPoPHandle(plain, key)
})
await step('component', async () => {
  const product = await discover(env.product, projected(env.componentAssertion))
  const own = client.getDPoPHandle(product, await client.randomDPoPKeyPair('ES256'))
  const token = await client.clientCredentialsGrant(product, {}, { DPoP: own })
  expect(token.token_type === 'dpop', token.token_type)
})
await step('claim', async () => {
  run = await client.genericGrantRequest(authenticated, tokenExchange, claim(), { DPoP })
  expect(run.token_type === 'dpop' && run.run.fence > 0, JSON.stringify(run.run))
  return 'by its generic grant request: it has no token exchange of its own'
})
await step('renew', async () => {
  const renewed = await (await resource(run.access_token, `${env.issuer}/v1/runs/renew`, '{}')).json()
  run.access_token = renewed.access_token
  expect(renewed.run.lease_ms > 0, 'there is no lease')
})
let first
await step('mint', async () => {
  first = await minted('debit')
  expect(first.effect.length === 22, 'there is no effect')
})
await step('guard', () => applied(first.access_token, 'debit'))
await step('rotation', async () => {
  const { requests, statuses } = await count(async () => applied((await minted('credit')).access_token, 'credit'))
  expect(requests === 2, `an effect took ${statuses}`)
  return '2 requests an effect'
})
await step('stale nonce', async () => {
  wire.stale.set(new URL(env.issuer).origin, env.staleAuthority)
  wire.stale.set(new URL(env.guard).origin, env.staleGuard)
  run.access_token = (await (await resource(run.access_token, `${env.issuer}/v1/runs/renew`, '{}')).json()).access_token
  const mints = await count(() => minted('tax'))
  expect(String(mints.statuses) === '400,200', `the authority answered ${mints.statuses}`)
  await applied(mints.result.access_token, 'tax') // its answer brings the old one
  const fourth = await minted('rest')
  const calls = await count(() => applied(fourth.access_token, 'rest'))
  expect(String(calls.statuses) === '401,200', `the guard answered ${calls.statuses}`)
})
await step('other key', async () => {
  const thief = client.getDPoPHandle(plain, await client.randomDPoPKeyPair('ES256'))
  const refused = async (work) => {
    try {
      await work()
    } catch (error) {
      return error.error ?? error.cause?.[0]?.parameters?.error
    }
    throw new Error('another key was accepted')
  }
  const last = await minted('keyed')
  const codes = [await refused(() => minted('stolen', thief)), await refused(() => resource(last.access_token, operation, effect('keyed'), thief))]
  expect(codes.every((c) => c === 'invalid_token' || c === 'invalid_dpop_proof'), String(codes))
  return codes.join(', ')
})
await step('settle', async () => {
  const receipt = await (await resource(run.access_token, `${env.issuer}/v1/runs/settle`, '{"result":"succeeded"}')).json()
  expect(receipt.state === 'succeeded' && receipt.committed === 4, JSON.stringify(receipt))
})
