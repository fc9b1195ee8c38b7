// oauth4webapi, unmodified: every step by its own functions, and its validator of access tokens on ours.
import * as oauth from 'oauth4webapi'
import { env, step, expect, count, wire, tokenExchange, operation, claim, mint, effect, projected } from './steps.mjs'

const books = { client_id: env.client }
const product = { client_id: env.product }
const options = { [oauth.allowInsecureRequests]: true, [oauth.customFetch]: wire.fetch } // plain http: only on loopback
const key = await oauth.generateKeyPair('ES256')
const DPoP = oauth.DPoP(books, key)
const own = { ...options, DPoP }

// The library remembers nonces but leaves it to its caller to ask again.
async function again(work) {
  try {
    return await work()
  } catch (error) {
    if (!oauth.isDPoPNonceError(error)) throw error
    return await work()
  }
}

let as, run
const grant = (client, authentication, type, form, using = own) =>
  again(async () =>
    oauth.processGenericTokenEndpointResponse(as, client, await oauth.genericTokenEndpointRequest(as, client, authentication, type, form, using)),
  )
const resource = (token, url, body, using = own) =>
  again(() => oauth.protectedResourceRequest(token, 'POST', new URL(url), new Headers({ 'content-type': 'application/json' }), body, using))
const minted = (name, using) => grant(books, oauth.None(), tokenExchange, mint(run.access_token, name), using)
async function applied(token, name) {
  const answer = await (await resource(token, operation, effect(name))).json()
  expect(answer.outcome === 'committed', JSON.stringify(answer))
}

await step('discovery', async () => {
  const issuer = new URL(env.issuer)
  as = await oauth.processDiscoveryResponse(issuer, await oauth.discoveryRequest(issuer, { ...options, algorithm: 'oauth2' }))
  const guard = new URL(env.guard)
  const of = await oauth.processResourceDiscoveryResponse(guard, await oauth.resourceDiscoveryRequest(guard, options))
  expect(of.authorization_servers[0] === as.issuer, 'the guard names another authority')
})
await step('component', async () => {
  const owner = { ...options, DPoP: oauth.DPoP(product, await oauth.generateKeyPair('ES256')) }
  const token = await again(async () =>
    oauth.processClientCredentialsResponse(as, product, await oauth.clientCredentialsGrantRequest(as, product, projected(env.componentAssertion), {}, owner)),
  )
  expect(token.token_type === 'dpop', token.token_type)
})
await step('claim', async () => {
  run = await grant(books, projected(env.workerAssertion), tokenExchange, claim())
  expect(run.token_type === 'dpop' && run.run.fence > 0, JSON.stringify(run.run))
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
  await resource(run.access_token, `${env.issuer}/v1/runs/renew`, '{}').then(async (a) => (run.access_token = (await a.json()).access_token))
  const mints = await count(() => minted('tax'))
  expect(String(mints.statuses) === '400,200', `the authority answered ${mints.statuses}`)
  await applied(mints.result.access_token, 'tax') // its answer brings the old one
  const fourth = await minted('rest')
  const calls = await count(() => applied(fourth.access_token, 'rest'))
  expect(String(calls.statuses) === '401,200', `the guard answered ${calls.statuses}`)
})
await step('other key', async () => {
  const thief = { ...options, DPoP: oauth.DPoP(books, await oauth.generateKeyPair('ES256')) }
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
await step('validators', async () => {
  const token = (await minted('keyed')).access_token
  const request = async (t) => {
    const headers = new Headers({ authorization: `DPoP ${t}` })
    await prove(headers, operation, t)
    return new Request(operation, { method: 'POST', headers })
  }
  const check = async (t, audience) => oauth.validateJwtAccessToken(as, await request(t), audience, { ...options, requireDPoP: true })
  const claims = await check(token, env.guard)
  expect(claims.cnf.jkt !== undefined, 'the capability is not bound')
  await check(run.access_token, env.issuer)
  for (const bad of [tampered(token), run.access_token]) {
    let accepted = true
    await check(bad, env.guard).catch(() => (accepted = false))
    expect(!accepted, 'a bad capability was accepted')
  }
  const stolen = await request(token)
  stolen.headers.set('dpop', (await request(run.access_token)).headers.get('dpop'))
  let accepted = true
  await oauth.validateJwtAccessToken(as, stolen, env.guard, options).catch(() => (accepted = false))
  expect(!accepted, 'a proof of another token was accepted')
})
await step('settle', async () => {
  const receipt = await (await resource(run.access_token, `${env.issuer}/v1/runs/settle`, '{"result":"succeeded"}')).json()
  expect(receipt.state === 'succeeded' && receipt.committed === 4, JSON.stringify(receipt))
})

// prove lets the library's own handle write a proof, by making a request that goes nowhere.
async function prove(headers, url, token) {
  const capture = async (_url, init) => {
    headers.set('dpop', new Headers(init.headers).get('dpop'))
    return new Response('{}', { status: 200, headers: { 'content-type': 'application/json' } })
  }
  await oauth.protectedResourceRequest(token, 'POST', new URL(url), new Headers(), null, { ...own, [oauth.customFetch]: capture })
}

function tampered(token) {
  const [head, body, signature] = token.split('.')
  const claims = JSON.parse(Buffer.from(body, 'base64url'))
  claims.exp += 600
  return [head, Buffer.from(JSON.stringify(claims)).toString('base64url'), signature].join('.')
}
