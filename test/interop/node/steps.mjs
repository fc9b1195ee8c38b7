// What all clients of this folder share: the environment that they are given, how
// they tell what came of a step, and a fetch that counts. Nothing here knows DPoP.
import { readFileSync } from 'node:fs'

/** @type {{issuer: string, guard: string, client: string, product: string, run: string, componentAssertion: string, workerAssertion: string, staleAuthority: string, staleGuard: string}} */
export const env = JSON.parse(readFileSync(process.argv[2], 'utf8'))

export const tokenExchange = 'urn:ietf:params:oauth:grant-type:token-exchange'
export const operation = `${env.guard}/operations/row.append`

/** The form of a claim, but for client authentication. */
export const claim = () => ({ subject_token: env.run, subject_token_type: 'urn:nightwarrant:token-type:run-reference' })

/** What an effect does; a mint and the request at the guard must say the same. */
export const parameters = (memo) => ({ table: 'entries', values: { memo, cents: 1250 } })

/** The form of a mint. */
export const mint = (runToken, step) => ({
  subject_token: runToken,
  subject_token_type: 'urn:ietf:params:oauth:token-type:access_token',
  resource: env.guard,
  effect_key: step,
  authorization_details: JSON.stringify([
    { type: 'urn:nightwarrant:effect', actions: ['row.append'], locations: [env.guard], identifier: 'table:entries', parameters: parameters(step) },
  ]),
})

/** The body of the request at the guard. */
export const effect = (step) => JSON.stringify({ resource: 'table:entries', parameters: parameters(step) })

/** A client authenticates with its projected token; libraries know only assertions that they sign themselves. */
export const projected = (assertion) => (_as, client, body, _headers) => {
  body.set('client_id', client.client_id)
  body.set('client_assertion_type', 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer')
  body.set('client_assertion', assertion)
}

export function expect(condition, what) {
  if (!condition) throw new Error(what)
}

/** wire counts requests, and may let a nonce grow old on its way: the next answer from that origin carries it. */
export const wire = {
  requests: 0,
  statuses: [],
  stale: new Map(),
  fetch: async (input, init) => {
    const answer = await fetch(input, init)
    wire.requests++
    wire.statuses.push(answer.status)
    const old = wire.stale.get(new URL(answer.url).origin)
    if (old === undefined) return answer
    wire.stale.delete(new URL(answer.url).origin)
    const headers = new Headers(answer.headers)
    headers.set('dpop-nonce', old)
    const aged = new Response(answer.body, { status: answer.status, statusText: answer.statusText, headers })
    Object.defineProperty(aged, 'url', { value: answer.url })
    return aged
  },
}

/** count says how many requests a piece of work took, and what was answered. */
export async function count(work) {
  wire.requests = 0
  wire.statuses = []
  const result = await work()
  return { result, requests: wire.requests, statuses: wire.statuses }
}

/** step runs one and prints what came of it: one JSON line. A later step that needs it fails by itself. */
export async function step(name, work) {
  try {
    const note = await work()
    console.log(JSON.stringify({ step: name, ok: true, note: note ?? '' }))
  } catch (error) {
    console.log(JSON.stringify({ step: name, ok: false, note: `${error?.code ?? error?.name}: ${error?.error ?? ''} ${error?.message} ${JSON.stringify(error?.cause ?? '').slice(0, 300)}` }))
  }
}
