// A worker with Node's fetch and a library that makes proofs, nothing else: what both `dpop` and `jose` need around them.
import { env, step, expect, count, wire, tokenExchange, operation, claim, mint, effect } from './steps.mjs'

/** A bearer of a key: nonces by origin, one repetition when a nonce is wanted, which says that nothing happened. */
export function bearer(prove) {
  const nonces = new Map()
  const once = async (url, token, headers, body) => {
    const { origin } = new URL(url)
    const proof = await prove(url, 'POST', nonces.get(origin), token)
    const sent = { ...headers, dpop: proof, ...(token && { authorization: `DPoP ${token}` }) }
    const answer = await wire.fetch(url, { method: 'POST', headers: sent, body, redirect: 'error' })
    if (answer.headers.has('dpop-nonce')) nonces.set(origin, answer.headers.get('dpop-nonce'))
    return { status: answer.status, challenge: answer.headers.get('www-authenticate') ?? '', body: await answer.json() }
  }
  return async (url, token, headers, body) => {
    const answer = await once(url, token, headers, body)
    const wanted = answer.body.error === 'use_dpop_nonce' || answer.challenge.startsWith('DPoP error="use_dpop_nonce"')
    return wanted ? await once(url, token, headers, body) : answer
  }
}

/** All steps of a worker. `keyed` makes a key and gives the function that proves it. */
export async function work(keyed) {
  const authentication = (assertion) => ({ client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer', client_assertion: assertion })
  const post = bearer(await keyed())
  let as, run, first
  const ok = (answer) => {
    expect(answer.status === 200, `${answer.status} ${JSON.stringify(answer.body)}`)
    return answer.body
  }
  const form = (by, fields) => by(as.token_endpoint, undefined, { 'content-type': 'application/x-www-form-urlencoded' }, new URLSearchParams(fields).toString())
  const json = (by, url, token, body) => by(url, token, { 'content-type': 'application/json' }, body)
  const minted = async (name, by = post) => form(by, { grant_type: tokenExchange, ...mint(run.access_token, name) })
  const applied = async (token, name, by = post) => {
    const answer = ok(await json(by, operation, token, effect(name)))
    expect(answer.outcome === 'committed', JSON.stringify(answer))
  }

  await step('discovery', async () => {
    as = await (await fetch(`${env.issuer}/.well-known/oauth-authorization-server`)).json()
    expect(as.issuer === env.issuer, as.issuer)
  })
  await step('component', async () => {
    const token = ok(await form(bearer(await keyed()), { grant_type: 'client_credentials', client_id: env.product, ...authentication(env.componentAssertion) }))
    expect(token.token_type === 'DPoP', token.token_type)
  })
  await step('claim', async () => {
    run = ok(await form(post, { grant_type: tokenExchange, ...claim(), client_id: env.client, ...authentication(env.workerAssertion) }))
    expect(run.token_type === 'DPoP' && run.run.fence > 0, JSON.stringify(run))
  })
  await step('renew', async () => {
    run = ok(await json(post, `${env.issuer}/v1/runs/renew`, run.access_token, '{}'))
  })
  await step('mint', async () => {
    first = ok(await minted('debit'))
  })
  await step('guard', () => applied(first.access_token, 'debit'))
  await step('rotation', async () => {
    const { requests, statuses } = await count(async () => applied(ok(await minted('credit')).access_token, 'credit'))
    expect(requests === 2, `an effect took ${statuses}`)
    return '2 requests an effect'
  })
  await step('stale nonce', async () => {
    wire.stale.set(new URL(env.issuer).origin, env.staleAuthority)
    wire.stale.set(new URL(env.guard).origin, env.staleGuard)
    run = ok(await json(post, `${env.issuer}/v1/runs/renew`, run.access_token, '{}'))
    const mints = await count(() => minted('tax'))
    expect(String(mints.statuses) === '400,200', `the authority answered ${mints.statuses}`)
    await applied(ok(mints.result).access_token, 'tax') // its answer brings the old one
    const fourth = ok(await minted('rest'))
    const calls = await count(() => applied(fourth.access_token, 'rest'))
    expect(String(calls.statuses) === '401,200', `the guard answered ${calls.statuses}`)
  })
  await step('other key', async () => {
    const thief = bearer(await keyed())
    const last = ok(await minted('keyed'))
    const stolen = await minted('stolen', thief)
    const used = await json(thief, operation, last.access_token, effect('keyed'))
    for (const answer of [stolen, used]) expect([400, 401].includes(answer.status) && ['invalid_token', 'invalid_dpop_proof'].includes(answer.body.error), JSON.stringify(answer))
    return `${stolen.body.error}, ${used.body.error}`
  })
  return {
    tokens: async () => ({ run: run.access_token, effect: ok(await minted('keyed')).access_token, jwks: as.jwks_uri }),
    settle: () =>
      step('settle', async () => {
        const receipt = ok(await json(post, `${env.issuer}/v1/runs/settle`, run.access_token, '{"result":"succeeded"}'))
        expect(receipt.state === 'succeeded' && receipt.committed === 4, JSON.stringify(receipt))
      }),
  }
}
