-- +goose Up
-- The tables of the authority, with their invariants. Verbs come in the files after this one.
--
-- Two rules hold everywhere here:
--   * run-time tables hold references, digests, states, numbers and times; text from outside stands in nw.documents only;
--   * every column has a class, in its comment; a test reads the catalogue.

-- +goose StatementBegin
DO $$
DECLARE r text;
BEGIN
  -- The owner of everything here. Nobody logs in as it.
  BEGIN
    CREATE ROLE nw_owner NOLOGIN;
  EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
  END;
  -- One database role per process role. They own nothing and read nothing: each may EXECUTE its verbs (00006_grants.sql).
  FOREACH r IN ARRAY ARRAY['nw_authority', 'nw_scheduler', 'nw_operator'] LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I LOGIN', r);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END;
    EXECUTE format('ALTER ROLE %I SET default_transaction_isolation = ''read committed''', r);
    EXECUTE format('ALTER ROLE %I SET lock_timeout = ''500ms''', r);
    EXECUTE format('ALTER ROLE %I SET statement_timeout = ''1s''', r);
    EXECUTE format('ALTER ROLE %I SET idle_in_transaction_session_timeout = ''250ms''', r);
  END LOOP;
END $$;
-- +goose StatementEnd

CREATE SCHEMA nw;
REVOKE ALL ON SCHEMA nw FROM PUBLIC;

-- Column classes --------------------------------------------------------------------------------------------------

-- +goose StatementBegin
CREATE FUNCTION nw.classify(p_table text, p_columns text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE line text; col text; class text;
BEGIN
  FOREACH line IN ARRAY string_to_array(p_columns, ',') LOOP
    col := split_part(btrim(line, E' \n'), ' ', 1);
    class := split_part(btrim(line, E' \n'), ' ', 2);
    IF class NOT IN ('reference', 'digest', 'state', 'number', 'time', 'flag', 'public_key', 'document', 'sealed') THEN
      RAISE EXCEPTION 'column %.% has no class', p_table, col;
    END IF;
    EXECUTE format('COMMENT ON COLUMN nw.%I.%I IS %L', p_table, col, class);
  END LOOP;
END $$;
-- +goose StatementEnd

-- Vocabularies ----------------------------------------------------------------------------------------------------

-- Every verdict of every verb: `ok`, a refusal code of authority/api, or a question to the replica that asks.
CREATE DOMAIN nw.verdict AS text CHECK (VALUE IN (
  'ok', 'ask_directory', 'directory_unavailable', 'not_a_member', 'invalid_request', 'not_found', 'forbidden', 'admission_closed', 'use_dpop_nonce', 'worker_nonce', 'worker_proof', 'proof_replayed', 'wrong_key', 'invalid_dpop_proof', 'invalid_token',
  'invalid_client', 'assertion_bound', 'invalid_envelope', 'unknown_member', 'invalid_target', 'invalid_grant', 'invalid_authorization_details', 'unsupported_grant_type',
  'payload_too_large', 'unsupported_media_type', 'method_not_allowed', 'too_many_requests', 'unavailable', 'outcome_unknown', 'internal', 'precondition_required', 'stale',
  'unknown_run', 'run_ended', 'held', 'lease_lost', 'fence_stale', 'deadline_passed', 'authority_changed', 'readiness_changed', 'consent_ended',
  'lane_uncertain', 'effects_in_flight', 'not_granted', 'approval_unavailable', 'approval_required', 'approval_denied', 'decision_changed', 'decision_ended', 'limit_reached', 'loop_detected', 'effect_ambiguous', 'effect_in_flight', 'effect_key_conflict',
  'effect_repeated', 'effect_lapsed', 'effect_mismatch', 'effect_already_admitted', 'effect_settled', 'attempt_mismatch', 'wrong_guard', 'too_late', 'credential_unavailable',
  'boot_superseded', 'report_stale', 'unknown_family', 'invalid_document', 'revision_immutable', 'revision_stale', 'offer_changed', 'offer_ended', 'not_offered', 'too_many_offers', 'retired',
  'receipt_pending', 'receipt_gone', 'receipt_too_large'));

-- Everything that can be audited.
CREATE DOMAIN nw.verb AS text CHECK (VALUE IN (
  'register_keys', 'rotate_keys', 'cut_off_keys', 'apply', 'retire', 'offer', 'narrow', 'consent', 'decline', 'revoke', 'cut_off', 'plan', 'publish', 'claim', 'renew', 'mint', 'admit', 'settle_effect',
  'late_evidence', 'evidence', 'withdraw', 'expire_effect', 'expire_consent', 'ask', 'decide', 'notice', 'finding', 'settle_run', 'end_run', 'requeue', 'component', 'report', 'open', 'close', 'hold', 'release', 'requirement', 'standby', 'depart',
  'incarnation', 'resume_log', 'refusals', 'present', 'sign_in', 'sign_out', 'redact', 'retention', 'prune'));

-- Families of A17 that this version builds, those that are to come (nobody may report them yet: no stand-in is ever healthy), and an
-- operator's own ones, by the digest of their name.
CREATE DOMAIN nw.family AS text CHECK (VALUE IN ('store', 'signing', 'nonces', 'queue', 'clock', 'audit', 'attestation', 'directory', 'approvals', 'guards',
  'brokering', 'models') OR VALUE ~ '^x_[0-9a-f]{64}$');

-- Why a report is bad or a decision closed.
CREATE DOMAIN nw.reason AS text CHECK (VALUE IN (
  'start', 'held', 'absent', 'stale', 'unhealthy', 'incompatible', 'settings', 'schema', 'disk', 'unreachable', 'material', 'canary', 'skew', 'profile',
  'requirement', 'incarnation', 'expired', 'good'));

-- Digests of models and datasets that a guard serves, or that a requirement lists.
CREATE FUNCTION nw.are_digests(p bytea[]) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
  'SELECT cardinality(p) <= 64 AND coalesce((SELECT bool_and(octet_length(d) = 32) FROM unnest(p) AS x(d)), true)';
CREATE DOMAIN nw.digests AS bytea[] CHECK (VALUE IS NULL OR nw.are_digests(VALUE));

-- Documents -------------------------------------------------------------------------------------------------------

-- One of the two tables that may hold text from outside: what operators wrote and what members agreed to, as canonical bytes.
CREATE TABLE nw.documents (
  digest     bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
  kind       text NOT NULL CHECK (kind IN ('attestation_profile', 'client', 'guard', 'reporter', 'product', 'workload_role', 'policy', 'task', 'consent', 'requirement', 'return')),
  body       bytea NOT NULL CHECK (octet_length(body) BETWEEN 2 AND 65536),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp());
SELECT nw.classify('documents', 'digest digest, kind state, body document, created_at time');

-- The cluster's public identity (A11). Entered once by `keys register`; no process inserts it on its own. Its keys are in nw.key_generations.
CREATE TABLE nw.authority_identity (
  singleton     boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  cluster       bytea NOT NULL CHECK (octet_length(cluster) = 16),
  audit_key     bytea NOT NULL CHECK (octet_length(audit_key) = 32),
  cache_ms      bigint NOT NULL CHECK (cache_ms BETWEEN 1000 AND 300000), -- how long a relying party may keep the published keys
  margin_ms     bigint NOT NULL CHECK (margin_ms BETWEEN 1000 AND 3600000), -- on top of every time that a rotation waits (P27)
  lifetime_ms   bigint NOT NULL CHECK (lifetime_ms BETWEEN 1000 AND 300000), -- the longest of anything that is signed
  registered_at timestamptz NOT NULL DEFAULT clock_timestamp());
SELECT nw.classify('authority_identity', 'singleton flag, cluster reference, audit_key public_key, cache_ms number, margin_ms number, lifetime_ms number, registered_at time');

-- Registry --------------------------------------------------------------------------------------------------------

-- Registered things are immutable at (kind, name, revision); they can only be retired.
CREATE TABLE nw.registry (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind     text NOT NULL CHECK (kind IN ('attestation_profile', 'client', 'guard', 'reporter', 'product', 'workload_role', 'policy')),
  name     bytea NOT NULL CHECK (octet_length(name) = 32),
  revision bigint NOT NULL CHECK (revision > 0),
  document bytea NOT NULL REFERENCES nw.documents,
  state    text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'retired')),
  UNIQUE (kind, name, revision));
SELECT nw.classify('registry', 'id number, kind state, name digest, revision number, document digest, state state');

-- Guards, reporters and products: whoever gets a component capability.
CREATE TABLE nw.components (
  id          bigint PRIMARY KEY REFERENCES nw.registry,
  profile_id  bigint NOT NULL REFERENCES nw.registry,
  uri         bytea CHECK (octet_length(uri) = 32),
  catalogue   bytea CHECK (octet_length(catalogue) = 32), -- of all that a guard can do
  provable    boolean NOT NULL DEFAULT false,
  max_call_ms integer NOT NULL DEFAULT 60000 CHECK (max_call_ms BETWEEN 1 AND 600000),
  settle_ms   integer NOT NULL DEFAULT 5000 CHECK (settle_ms BETWEEN 1000 AND 600000), -- after the time to apply; then an effect is ambiguous (P16)
  CHECK ((uri IS NULL) = (catalogue IS NULL)));
CREATE UNIQUE INDEX components_uri ON nw.components (uri);
SELECT nw.classify('components', 'id number, profile_id number, uri digest, catalogue digest, provable flag, max_call_ms number, settle_ms number');

-- The families of their own that reporters and products may report.
CREATE TABLE nw.component_families (
  component_id bigint NOT NULL REFERENCES nw.components,
  family       nw.family NOT NULL CHECK (family LIKE 'x\_%'),
  PRIMARY KEY (component_id, family));
SELECT nw.classify('component_families', 'component_id number, family state');

CREATE TABLE nw.role_profiles (
  role_id    bigint NOT NULL REFERENCES nw.registry,
  profile_id bigint NOT NULL REFERENCES nw.registry,
  PRIMARY KEY (role_id, profile_id));
SELECT nw.classify('role_profiles', 'role_id number, profile_id number');

-- Actions not listed do not exist (B5): a consent's grant has a foreign key into this list.
CREATE TABLE nw.role_actions (
  role_id  bigint NOT NULL REFERENCES nw.registry,
  guard_id bigint NOT NULL REFERENCES nw.components,
  action   bytea NOT NULL CHECK (octet_length(action) = 32),
  PRIMARY KEY (role_id, guard_id, action));
SELECT nw.classify('role_actions', 'role_id number, guard_id number, action digest');

-- One opaque queue per workload role, whatever its revision.
CREATE TABLE nw.role_queues (
  name  bytea PRIMARY KEY CHECK (octet_length(name) = 32),
  queue bytea NOT NULL UNIQUE CHECK (octet_length(queue) = 16));
SELECT nw.classify('role_queues', 'name digest, queue reference');

-- Tasks, offers, consents -----------------------------------------------------------------------------------------

CREATE TABLE nw.tasks (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ref       bytea NOT NULL UNIQUE CHECK (octet_length(ref) = 16),
  name      bytea NOT NULL UNIQUE CHECK (octet_length(name) = 32),
  client_id bigint NOT NULL REFERENCES nw.registry,
  product_id bigint REFERENCES nw.components, -- that entered it; none: an operator did
  owner     bytea NOT NULL CHECK (octet_length(owner) = 32));
CREATE INDEX tasks_owner ON nw.tasks (owner, id);
SELECT nw.classify('tasks', 'id number, ref reference, name digest, client_id number, product_id number, owner reference');

CREATE TABLE nw.task_revisions (
  task_id   bigint NOT NULL REFERENCES nw.tasks,
  revision  bigint NOT NULL CHECK (revision > 0),
  document  bytea NOT NULL REFERENCES nw.documents,
  role_id   bigint NOT NULL REFERENCES nw.registry,
  policy_id bigint NOT NULL REFERENCES nw.registry,
  PRIMARY KEY (task_id, revision));
SELECT nw.classify('task_revisions', 'task_id number, revision number, document digest, role_id number, policy_id number');

CREATE TABLE nw.offers (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ref           bytea NOT NULL UNIQUE CHECK (octet_length(ref) = 16),
  task_id       bigint NOT NULL,
  task_revision bigint NOT NULL,
  member        bytea NOT NULL CHECK (octet_length(member) = 32),
  digest        bytea NOT NULL REFERENCES nw.documents, -- what a plain yes gives: nothing optional
  most          bytea REFERENCES nw.documents,          -- what may be chosen from, where that is more
  variant       bytea REFERENCES nw.documents,          -- what the member has chosen of it last
  product_id    bigint REFERENCES nw.components,        -- that asks; none: an operator does
  back          bytea REFERENCES nw.documents,          -- where the answer returns to, with the product's own state
  state         text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'accepted', 'declined', 'replaced')),
  expires_at    timestamptz NOT NULL,
  CHECK ((product_id IS NULL) = (back IS NULL)),
  FOREIGN KEY (task_id, task_revision) REFERENCES nw.task_revisions);
CREATE INDEX offers_waiting ON nw.offers (product_id, expires_at) WHERE state = 'open' AND product_id IS NOT NULL;
CREATE INDEX offers_asked ON nw.offers (product_id, member, expires_at) WHERE product_id IS NOT NULL;
CREATE UNIQUE INDEX offers_one_open ON nw.offers (task_id) WHERE state = 'open';
CREATE INDEX offers_member ON nw.offers (member, id);
SELECT nw.classify('offers', 'id number, ref reference, task_id number, task_revision number, member reference, digest digest, most digest, variant digest, product_id number, back digest, state state, expires_at time');

CREATE TABLE nw.consents (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ref           bytea NOT NULL UNIQUE CHECK (octet_length(ref) = 16),
  offer_id      bigint NOT NULL UNIQUE REFERENCES nw.offers,
  task_id       bigint NOT NULL,
  task_revision bigint NOT NULL,
  member        bytea NOT NULL CHECK (octet_length(member) = 32),
  client_id     bigint NOT NULL REFERENCES nw.registry,
  role_id       bigint NOT NULL REFERENCES nw.registry,
  policy_id     bigint NOT NULL REFERENCES nw.registry,
  digest        bytea NOT NULL REFERENCES nw.documents,
  dial          smallint NOT NULL CHECK (dial BETWEEN 0 AND 3),
  run_limit_ms  bigint NOT NULL CHECK (run_limit_ms BETWEEN 1000 AND 604800000),
  max_effects   integer NOT NULL CHECK (max_effects BETWEEN 0 AND 100000),
  max_steps     integer NOT NULL CHECK (max_steps BETWEEN 1 AND 1000000),
  max_repeats   smallint NOT NULL CHECK (max_repeats BETWEEN 1 AND 100), -- of one effect in one run, under whatever keys
  max_spend     bigint NOT NULL CHECK (max_spend BETWEEN 0 AND 1000000000000), -- minor units of currency
  currency      bytea CHECK (octet_length(currency) = 32),
  effects_day   bigint NOT NULL CHECK (effects_day >= 0), -- in calendar days and months of UTC; 0 is no such bound
  effects_month bigint NOT NULL CHECK (effects_month >= 0),
  spend_day     bigint NOT NULL CHECK (spend_day >= 0),
  spend_month   bigint NOT NULL CHECK (spend_month >= 0),
  member_spend_day   bigint NOT NULL CHECK (member_spend_day >= 0), -- of all the member's tasks
  member_spend_month bigint NOT NULL CHECK (member_spend_month >= 0),
  silence       text NOT NULL CHECK (silence IN ('wait', 'stop')), -- when the owner does not answer: wait until the deadline, or stop after the window
  window_ms     bigint NOT NULL CHECK (window_ms BETWEEN 60000 AND 604800000),
  not_before    timestamptz NOT NULL,
  expires_at    timestamptz NOT NULL CHECK (expires_at > not_before),
  state         text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'superseded', 'revoked', 'expired')),
  given_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (max_spend = 0 OR currency IS NOT NULL),
  epoch         bigint NOT NULL CHECK (epoch > 0), -- the task's activation epoch with which it began
  FOREIGN KEY (task_id, task_revision) REFERENCES nw.task_revisions);
CREATE UNIQUE INDEX consents_one_active ON nw.consents (task_id) WHERE state = 'active';
CREATE UNIQUE INDEX consents_whose ON nw.consents (id, member);
CREATE INDEX consents_member ON nw.consents (member, id);
CREATE INDEX consents_over ON nw.consents (expires_at) WHERE state = 'active';
SELECT nw.classify('consents', 'id number, ref reference, offer_id number, task_id number, task_revision number, member reference, client_id number, role_id number,
  policy_id number, digest digest, dial number, run_limit_ms number, max_effects number, max_steps number, max_repeats number, max_spend number, currency digest, effects_day number, effects_month number,
  spend_day number, spend_month number, member_spend_day number, member_spend_month number, silence state, window_ms number, not_before time, expires_at time, state state,
  given_at time, epoch number');

CREATE TABLE nw.consent_grants (
  consent_id bigint NOT NULL REFERENCES nw.consents,
  role_id    bigint NOT NULL,
  guard_id   bigint NOT NULL,
  action     bytea NOT NULL,
  resource   bytea NOT NULL CHECK (octet_length(resource) = 32),
  risk       smallint NOT NULL CHECK (risk BETWEEN 1 AND 3),
  max_amount bigint NOT NULL DEFAULT 0 CHECK (max_amount >= 0),
  currency   bytea CHECK (octet_length(currency) = 32),
  PRIMARY KEY (consent_id, guard_id, action, resource),
  FOREIGN KEY (role_id, guard_id, action) REFERENCES nw.role_actions);
SELECT nw.classify('consent_grants', 'consent_id number, role_id number, guard_id number, action digest, resource digest, risk number, max_amount number, currency digest');

-- Keys that the member has approved in advance (B5). An operator can only withdraw one.
CREATE TABLE nw.consent_keys (
  consent_id   bigint NOT NULL,
  guard_id     bigint NOT NULL,
  action       bytea NOT NULL,
  resource     bytea NOT NULL,
  key          bytea NOT NULL CHECK (octet_length(key) = 32),
  withdrawn_at timestamptz,
  PRIMARY KEY (consent_id, guard_id, action, resource, key),
  FOREIGN KEY (consent_id, guard_id, action, resource) REFERENCES nw.consent_grants);
SELECT nw.classify('consent_keys', 'consent_id number, guard_id number, action digest, resource digest, key digest, withdrawn_at time');

-- What was used in the current day and month (UTC), with what is reserved: a task's effects (holder is the task, unit is nothing), a task's money
-- and a member's money (unit is the currency). A model call is in two of them (B9).
CREATE TABLE nw.ledgers (
  holder bytea NOT NULL CHECK (octet_length(holder) IN (16, 32)),
  unit   bytea NOT NULL CHECK (octet_length(unit) IN (0, 32)),
  day    date NOT NULL DEFAULT '-infinity',
  today  bigint NOT NULL DEFAULT 0 CHECK (today >= 0),
  month  date NOT NULL DEFAULT '-infinity',
  monthly bigint NOT NULL DEFAULT 0 CHECK (monthly >= 0),
  PRIMARY KEY (holder, unit)) WITH (fillfactor = 50);
SELECT nw.classify('ledgers', 'holder reference, unit digest, day time, today number, month time, monthly number');

-- Lanes, schedules, slots, runs -----------------------------------------------------------------------------------

-- Where fences are ordered: one lane per task. This row is what every admission locks first (P2).
CREATE TABLE nw.lanes (
  task_id          bigint PRIMARY KEY REFERENCES nw.tasks,
  fence            bigint NOT NULL DEFAULT 0 CHECK (fence >= 0),
  activation_epoch bigint NOT NULL DEFAULT 1 CHECK (activation_epoch > 0),
  task_revision    bigint NOT NULL,
  consent_id       bigint REFERENCES nw.consents,
  uncertain_until  timestamptz NOT NULL DEFAULT '-infinity',
  uncertain_effect bigint) WITH (fillfactor = 70);
SELECT nw.classify('lanes', 'task_id number, fence number, activation_epoch number, task_revision number, consent_id number, uncertain_until time, uncertain_effect number');

CREATE TABLE nw.schedules (
  task_id bigint PRIMARY KEY REFERENCES nw.lanes,
  next_at timestamptz NOT NULL,
  zone    bytea NOT NULL CHECK (octet_length(zone) = 32)) WITH (fillfactor = 70);
CREATE INDEX schedules_due ON nw.schedules (next_at);
SELECT nw.classify('schedules', 'task_id number, next_at time, zone digest');

CREATE TABLE nw.runs (
  id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ref              bytea NOT NULL UNIQUE CHECK (octet_length(ref) = 16),
  task_id          bigint NOT NULL REFERENCES nw.lanes,
  consent_id       bigint NOT NULL,
  member           bytea NOT NULL, -- as whom it acts: whose consent it is
  role_id          bigint NOT NULL REFERENCES nw.registry,
  nominal_at       timestamptz NOT NULL,
  activation_epoch bigint NOT NULL,
  deadline         timestamptz NOT NULL,
  effects_left     integer NOT NULL CHECK (effects_left >= 0),
  steps_left       integer NOT NULL CHECK (steps_left >= 0),
  steps            integer NOT NULL DEFAULT 0 CHECK (steps >= 0), -- that were taken; what is left may fall faster
  spend_left       bigint NOT NULL, -- below zero after an overrun, which stops the next one
  state            text NOT NULL DEFAULT 'queued' CHECK (state IN
                   ('queued', 'claimed', 'waiting', 'ending', 'succeeded', 'failed', 'stopped_by_limit', 'expired', 'revoked', 'ambiguous')),
  ending           text CHECK (ending IN ('lease_lost', 'failed', 'stopped_by_limit', 'expired', 'revoked', 'ambiguous')),
  shortfall        text CHECK (shortfall IN ('approval', 'limit')),
  fence            bigint NOT NULL DEFAULT 0,
  readiness_epoch  bigint NOT NULL DEFAULT 0,
  holder           bytea CHECK (octet_length(holder) = 32),
  capability       bytea CHECK (octet_length(capability) = 32),
  lease_until      timestamptz,
  lease_ms         integer CHECK (lease_ms BETWEEN 2000 AND 60000),
  inflight         smallint NOT NULL DEFAULT 0 CHECK (inflight >= 0),
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at         timestamptz,
  -- Indexes name this column and not the state, which changes at every step: a claim or a renewal is then a HOT update.
  live             boolean NOT NULL GENERATED ALWAYS AS (state IN ('queued', 'claimed', 'waiting', 'ending')) STORED,
  CHECK ((state = 'claimed') = (holder IS NOT NULL)),
  CHECK ((state = 'claimed') = (lease_until IS NOT NULL)),
  CHECK ((state = 'ending') = (ending IS NOT NULL)),
  CHECK (inflight = 0 OR state IN ('claimed', 'ending')),
  CHECK ((ended_at IS NULL) = live),
  FOREIGN KEY (consent_id, member) REFERENCES nw.consents (id, member)) WITH (fillfactor = 60);
CREATE UNIQUE INDEX runs_one_live ON nw.runs (task_id) WHERE live;
CREATE INDEX runs_deadline ON nw.runs (deadline) WHERE live;
CREATE INDEX runs_task ON nw.runs (task_id, id);
CREATE INDEX runs_member ON nw.runs (member, id);
SELECT nw.classify('runs', 'id number, ref reference, task_id number, consent_id number, member reference, role_id number, nominal_at time, activation_epoch number, deadline time,
  effects_left number, steps_left number, steps number, spend_left number, state state, ending state, shortfall state, fence number, readiness_epoch number, holder digest, capability digest, lease_until time,
  lease_ms number, inflight number, created_at time, ended_at time, live flag');

-- Unique (task, nominal time) decides, leadership never.
CREATE TABLE nw.slots (
  task_id    bigint NOT NULL REFERENCES nw.lanes,
  nominal_at timestamptz NOT NULL,
  outcome    text NOT NULL CHECK (outcome IN ('run', 'skipped', 'coalesced')),
  reason     text CHECK (reason IN ('missed', 'window', 'too_many', 'consent', 'failover')),
  run_id     bigint REFERENCES nw.runs,
  covers     integer NOT NULL DEFAULT 1 CHECK (covers > 0), -- slots from nominal_at on, when an outage left too many for a row each
  zone       bytea NOT NULL CHECK (octet_length(zone) = 32),
  planned_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_id, nominal_at),
  CHECK (covers = 1 OR reason IN ('too_many', 'failover')),
  CHECK ((outcome = 'skipped') = (reason IS NOT NULL)),
  CHECK ((outcome = 'skipped') = (run_id IS NULL)));
CREATE UNIQUE INDEX slots_one_run ON nw.slots (run_id) WHERE outcome = 'run';
SELECT nw.classify('slots', 'task_id number, nominal_at time, outcome state, reason state, run_id number, covers number, zone digest,
  planned_at time');

-- A row lives from planning until the run is claimed or terminal.
CREATE TABLE nw.outbox (
  run_id  bigint PRIMARY KEY REFERENCES nw.runs,
  run_ref bytea NOT NULL CHECK (octet_length(run_ref) = 16),
  queue   bytea NOT NULL CHECK (octet_length(queue) = 16),
  attempt integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
  next_at timestamptz NOT NULL DEFAULT clock_timestamp()) WITH (fillfactor = 70);
SELECT nw.classify('outbox', 'run_id number, run_ref reference, queue reference, attempt number, next_at time');

-- Effects ---------------------------------------------------------------------------------------------------------

CREATE SEQUENCE nw.admissions;

CREATE TABLE nw.effects (
  id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ref              bytea NOT NULL UNIQUE CHECK (octet_length(ref) = 16),
  run_id           bigint NOT NULL REFERENCES nw.runs,
  task_id          bigint NOT NULL REFERENCES nw.lanes,
  key              bytea NOT NULL CHECK (octet_length(key) = 32),
  digest           bytea NOT NULL CHECK (octet_length(digest) = 32),
  guard_id         bigint NOT NULL REFERENCES nw.components,
  action           bytea NOT NULL CHECK (octet_length(action) = 32),
  resource         bytea NOT NULL CHECK (octet_length(resource) = 32),
  amount           bigint NOT NULL DEFAULT 0 CHECK (amount >= 0), -- that is reserved
  spent            bigint CHECK (spent >= 0),                     -- that was charged
  reserved_on      date,                                          -- the day in whose ledgers it stands
  risk             smallint NOT NULL CHECK (risk BETWEEN 1 AND 3),
  repeat_of        bigint REFERENCES nw.effects,
  state            text NOT NULL DEFAULT 'minted' CHECK (state IN ('asked', 'minted', 'lapsed', 'admitted', 'committed', 'not_applied', 'ambiguous')),
  fence            bigint NOT NULL,
  activation_epoch bigint NOT NULL,
  readiness_epoch  bigint NOT NULL,
  holder           bytea NOT NULL CHECK (octet_length(holder) = 32),
  capability       bytea NOT NULL CHECK (octet_length(capability) = 32),
  expires_at       timestamptz NOT NULL,
  attempt          bytea CHECK (octet_length(attempt) = 16),
  admission        bigint UNIQUE,
  admitted_at      timestamptz,
  apply_until      timestamptz,
  settle_until     timestamptz,
  settled_at       timestamptz,
  UNIQUE (run_id, key),
  CHECK ((state IN ('asked', 'minted', 'lapsed')) = (attempt IS NULL)),
  CHECK ((attempt IS NULL) = (admission IS NULL)),
  CHECK ((attempt IS NULL) = (settle_until IS NULL)),
  CHECK ((state IN ('committed', 'not_applied', 'ambiguous')) = (settled_at IS NOT NULL)),
  CHECK ((spent IS NOT NULL) = (settled_at IS NOT NULL)),
  CHECK (reserved_on IS NOT NULL OR state IN ('asked', 'lapsed'))) WITH (fillfactor = 70);
CREATE INDEX effects_reserved ON nw.effects (id) WHERE state = 'lapsed' AND reserved_on IS NOT NULL;
CREATE INDEX effects_admitted ON nw.effects (guard_id, id) WHERE state = 'admitted';
CREATE INDEX effects_ambiguous ON nw.effects (task_id, digest) WHERE state = 'ambiguous';
CREATE INDEX effects_run ON nw.effects (run_id, digest);
SELECT nw.classify('effects', 'id number, ref reference, run_id number, task_id number, key digest, digest digest, guard_id number, action digest, resource digest,
  amount number, spent number, reserved_on time, risk number, repeat_of number, state state, fence number, activation_epoch number, readiness_epoch number, holder digest, capability digest,
  expires_at time, attempt reference, admission number, admitted_at time, apply_until time, settle_until time, settled_at time');

-- An owner's decision about one exact effect of one run, with what it stands for (P21).
CREATE TABLE nw.decisions (
  id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ref              bytea NOT NULL UNIQUE CHECK (octet_length(ref) = 16),
  effect_id        bigint NOT NULL REFERENCES nw.effects,
  task_id          bigint NOT NULL REFERENCES nw.lanes,
  run_id           bigint NOT NULL REFERENCES nw.runs,
  member           bytea NOT NULL CHECK (octet_length(member) = 32),
  digest           bytea NOT NULL CHECK (octet_length(digest) = 32),
  activation_epoch bigint NOT NULL,
  policy_id        bigint NOT NULL REFERENCES nw.registry,
  requirement      bigint NOT NULL,
  state            text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'approved', 'denied', 'expired', 'used')),
  asked_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at       timestamptz NOT NULL,
  decided_at       timestamptz,
  CHECK ((state = 'pending') = (decided_at IS NULL))) WITH (fillfactor = 70);
CREATE UNIQUE INDEX decisions_one_card ON nw.decisions (task_id, digest) WHERE state = 'pending';
CREATE INDEX decisions_effect ON nw.decisions (effect_id);
CREATE INDEX decisions_run ON nw.decisions (run_id);
CREATE INDEX decisions_member ON nw.decisions (member, id);
CREATE INDEX decisions_over ON nw.decisions (expires_at) WHERE state = 'pending';
SELECT nw.classify('decisions', 'id number, ref reference, effect_id number, task_id number, run_id number, member reference, digest digest, activation_epoch number,
  policy_id number, requirement number, state state, asked_at time, expires_at time, decided_at time');

-- The other table that may hold text from outside: the exact arguments of an effect, where its owner must see them: to decide, or because nobody knows
-- whether it happened. Then also what a look at the destination showed afterwards.
CREATE TABLE nw.arguments (
  effect_id bigint NOT NULL REFERENCES nw.effects,
  written   text NOT NULL DEFAULT 'by_workload' CHECK (written IN ('by_workload', 'by_destination')),
  body      bytea NOT NULL CHECK (octet_length(body) BETWEEN 2 AND 65536),
  PRIMARY KEY (effect_id, written));
SELECT nw.classify('arguments', 'effect_id number, written state, body document');

-- What the guard of an ambiguous effect knows about it: when it sent, and what answered. Beside it stand the arguments.
CREATE TABLE nw.evidence (
  effect_id bigint PRIMARY KEY REFERENCES nw.effects,
  sent_at   timestamptz, -- by the guard's clock
  answered  text NOT NULL CHECK (answered IN ('nothing', 'timeout', 'connection', 'status', 'malformed', 'unknown')),
  status    smallint CHECK (status BETWEEN 100 AND 599),
  at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK ((answered = 'status') = (status IS NOT NULL)));
SELECT nw.classify('evidence', 'effect_id number, sent_at time, answered state, status number, at time');

-- What a person found out about an ambiguous effect: a new entry, never an edit, never a replay (A10).
CREATE TABLE nw.findings (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  effect_id bigint NOT NULL REFERENCES nw.effects,
  finding   text NOT NULL CHECK (finding IN ('happened', 'did_not', 'unknown')),
  member    bytea NOT NULL CHECK (octet_length(member) = 32),
  found_at  timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX findings_effect ON nw.findings (effect_id);
SELECT nw.classify('findings', 'id number, effect_id number, finding state, member reference, found_at time');

-- Proof that arrived after the settle window (P16). It changes no state.
CREATE TABLE nw.late_evidence (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  effect_id bigint NOT NULL UNIQUE REFERENCES nw.effects,
  outcome   text NOT NULL CHECK (outcome IN ('committed', 'not_applied')),
  at        timestamptz NOT NULL DEFAULT clock_timestamp());
SELECT nw.classify('late_evidence', 'id number, effect_id number, outcome state, at time');

-- Replay and assertion owners: fixed rings of partitions, emptied by TRUNCATE (P30) -------------------------------

CREATE TABLE nw.replay (
  slot   smallint NOT NULL,
  minute bigint NOT NULL,
  digest bytea NOT NULL CHECK (octet_length(digest) = 32),
  CHECK (slot = minute % 16),
  PRIMARY KEY (slot, minute, digest)) PARTITION BY LIST (slot);
SELECT nw.classify('replay', 'slot number, minute number, digest digest');

CREATE TABLE nw.assertion_owners (
  slot   smallint NOT NULL,
  period bigint NOT NULL, -- six hours, of the assertion's expiry
  digest bytea NOT NULL CHECK (octet_length(digest) = 32),
  jkt    bytea NOT NULL CHECK (octet_length(jkt) = 32),
  CHECK (slot = period % 12),
  PRIMARY KEY (slot, period, digest)) PARTITION BY LIST (slot);
SELECT nw.classify('assertion_owners', 'slot number, period number, digest digest, jkt digest');

-- +goose StatementBegin
DO $$
BEGIN
  FOR i IN 0..15 LOOP
    EXECUTE format('CREATE TABLE nw.replay_%s PARTITION OF nw.replay FOR VALUES IN (%s)', i, i);
    PERFORM nw.classify('replay_' || i, 'slot number, minute number, digest digest');
  END LOOP;
  FOR i IN 0..11 LOOP
    EXECUTE format('CREATE TABLE nw.assertion_owners_%s PARTITION OF nw.assertion_owners FOR VALUES IN (%s)', i, i);
    PERFORM nw.classify('assertion_owners_' || i, 'slot number, period number, digest digest, jkt digest');
  END LOOP;
END $$;
-- +goose StatementEnd

-- What is older than its floor is refused, so its rows may go (P31).
CREATE TABLE nw.ring_floors (
  ring  text PRIMARY KEY CHECK (ring IN ('replay', 'assertion_owners')),
  floor bigint NOT NULL,
  after timestamptz NOT NULL DEFAULT '-infinity'); -- what was issued before is refused: a restored ring has forgotten who used it
SELECT nw.classify('ring_floors', 'ring state, floor number, after time');
INSERT INTO nw.ring_floors VALUES ('replay', floor(extract(epoch FROM clock_timestamp()) / 60)::bigint - 3),
  ('assertion_owners', floor(extract(epoch FROM clock_timestamp()) / 21600)::bigint - 1);

-- Readiness -------------------------------------------------------------------------------------------------------

-- What must be good. Generation 1 is what is required in code; operators add generations, and each can only add.
CREATE TABLE nw.readiness_requirements (
  generation    bigint PRIMARY KEY CHECK (generation > 0),
  document      bytea REFERENCES nw.documents,
  closed_ms     integer NOT NULL CHECK (closed_ms BETWEEN 1000 AND 60000),
  closed_max_ms integer NOT NULL CHECK (closed_max_ms BETWEEN closed_ms AND 60000), -- it doubles up to this when it flaps
  rounds        smallint NOT NULL CHECK (rounds BETWEEN 3 AND 100),
  valid_ms      integer NOT NULL CHECK (valid_ms BETWEEN 1000 AND 2000),
  report_ttl_ms integer NOT NULL CHECK (report_ttl_ms BETWEEN 1000 AND 10000),
  protocols     smallint[] NOT NULL CHECK (cardinality(protocols) BETWEEN 1 AND 16), -- of guards; any other closes
  models        nw.digests NOT NULL DEFAULT '{}',
  datasets      nw.digests NOT NULL DEFAULT '{}',
  since         timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK ((generation = 1) = (document IS NULL)));
SELECT nw.classify('readiness_requirements', 'generation number, document digest, closed_ms number, closed_max_ms number, rounds number, valid_ms number,
  report_ttl_ms number, protocols number, models digest, datasets digest, since time');
INSERT INTO nw.readiness_requirements (generation, closed_ms, closed_max_ms, rounds, valid_ms, report_ttl_ms, protocols) VALUES (1, 5000, 60000, 3, 2000, 3000, '{1}');

-- Families beyond those in code, and how many good instances each needs. For guards: of each one.
CREATE TABLE nw.requirement_families (
  generation bigint NOT NULL REFERENCES nw.readiness_requirements,
  family     nw.family NOT NULL,
  minimum    smallint NOT NULL CHECK (minimum BETWEEN 1 AND 100),
  PRIMARY KEY (generation, family));
SELECT nw.classify('requirement_families', 'generation number, family state, minimum number');

-- The attestation profiles that are accepted, exactly. None listed: those that are registered.
CREATE TABLE nw.requirement_profiles (
  generation bigint NOT NULL REFERENCES nw.readiness_requirements,
  profile_id bigint NOT NULL REFERENCES nw.registry,
  PRIMARY KEY (generation, profile_id));
SELECT nw.classify('requirement_profiles', 'generation number, profile_id number');

CREATE TABLE nw.instances (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind          text NOT NULL CHECK (kind IN ('authority', 'scheduler', 'component')),
  component_id  bigint REFERENCES nw.components,
  instance      bytea NOT NULL CHECK (octet_length(instance) = 32),
  boot          bigint NOT NULL DEFAULT 1 CHECK (boot > 0),
  jkt           bytea CHECK (octet_length(jkt) = 32),
  registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK ((kind = 'component') = (component_id IS NOT NULL)),
  CHECK ((kind = 'component') = (jkt IS NOT NULL)));
CREATE UNIQUE INDEX instances_once ON nw.instances (kind, coalesce(component_id, 0), instance);
SELECT nw.classify('instances', 'id number, kind state, component_id number, instance digest, boot number, jkt digest, registered_at time');

CREATE TABLE nw.readiness_reports (
  instance_id bigint NOT NULL REFERENCES nw.instances,
  family      nw.family NOT NULL,
  boot        bigint NOT NULL,
  sequence    bigint NOT NULL,
  healthy     boolean NOT NULL,
  reason      nw.reason NOT NULL,
  began_at    timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  changed_at  timestamptz NOT NULL, -- since when it says what it says
  protocol    smallint,             -- of guards, like what they serve
  catalogue   bytea CHECK (octet_length(catalogue) = 32),
  models      nw.digests NOT NULL DEFAULT '{}',
  datasets    nw.digests NOT NULL DEFAULT '{}',
  PRIMARY KEY (instance_id, family),
  CHECK (healthy = (reason = 'good')),
  CHECK ((family = 'guards') = (protocol IS NOT NULL))) WITH (fillfactor = 50);
SELECT nw.classify('readiness_reports', 'instance_id number, family state, boot number, sequence number, healthy flag, reason state, began_at time, expires_at time,
  changed_at time, protocol number, catalogue digest, models digest, datasets digest');

-- Where this database is: which server, on which timeline. Another one is a new incarnation (P24), unless it is a standby that was known to
-- have everything.
CREATE TABLE nw.incarnations (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  incarnation bigint NOT NULL CHECK (incarnation BETWEEN 1 AND 4096), -- fences start at (incarnation - 1) * 2^40, within what JSON numbers hold
  system_id   bigint NOT NULL,
  timeline    integer NOT NULL CHECK (timeline > 0),
  reason      text NOT NULL CHECK (reason IN ('first', 'failover', 'restored', 'promoted')),
  at          timestamptz NOT NULL DEFAULT clock_timestamp());
SELECT nw.classify('incarnations', 'id number, incarnation number, system_id number, timeline number, reason state, at time');

-- An operator's statement that a synchronous standby may be promoted, made before: for one timeline, for a day.
CREATE TABLE nw.standbys (
  system_id bigint NOT NULL,
  timeline  integer NOT NULL,
  at        timestamptz NOT NULL DEFAULT clock_timestamp());
SELECT nw.classify('standbys', 'system_id number, timeline number, at time');

CREATE TABLE nw.readiness_decision (
  singleton   boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  state       text NOT NULL CHECK (state IN ('open', 'closed')),
  epoch       bigint NOT NULL CHECK (epoch > 0),
  sequence    bigint NOT NULL DEFAULT 1,
  incarnation bigint NOT NULL DEFAULT 1,
  timeline    integer NOT NULL, -- on which it was made: on another one nothing is admitted
  requirement bigint NOT NULL REFERENCES nw.readiness_requirements,
  valid_until timestamptz NOT NULL,
  since       timestamptz NOT NULL,
  held        boolean NOT NULL DEFAULT false,
  reason      nw.reason NOT NULL,
  family      nw.family,
  good_rounds smallint NOT NULL DEFAULT 0,
  round_at    timestamptz NOT NULL DEFAULT '-infinity',
  closed_ms   integer NOT NULL DEFAULT 5000,
  CHECK (NOT (held AND state = 'open'))) WITH (fillfactor = 20);
SELECT nw.classify('readiness_decision', 'singleton flag, state state, epoch number, sequence number, incarnation number, timeline number, requirement number, valid_until time,
  since time, held flag, reason state, family state, good_rounds number, round_at time, closed_ms number');

-- here says where this database is. The timeline is that of the write-ahead log being written.
CREATE FUNCTION nw.timeline() RETURNS integer LANGUAGE sql VOLATILE AS $$ SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer $$;
CREATE FUNCTION nw.here(OUT system_id bigint, OUT timeline integer) LANGUAGE sql VOLATILE AS $$ SELECT system_identifier, nw.timeline() FROM pg_control_system() $$;
INSERT INTO nw.incarnations (incarnation, system_id, timeline, reason) SELECT 1, system_id, timeline, 'first' FROM nw.here();
INSERT INTO nw.readiness_decision (state, epoch, timeline, requirement, valid_until, since, reason) VALUES ('closed', 1, nw.timeline(), 1, '-infinity', clock_timestamp(), 'start');

CREATE TABLE nw.readiness_log (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  state       text NOT NULL CHECK (state IN ('open', 'closed')),
  epoch       bigint NOT NULL UNIQUE,
  incarnation bigint NOT NULL,
  requirement bigint NOT NULL REFERENCES nw.readiness_requirements,
  reason      nw.reason NOT NULL,
  family      nw.family,
  inputs      bytea NOT NULL CHECK (octet_length(inputs) = 32));
SELECT nw.classify('readiness_log', 'id number, at time, state state, epoch number, incarnation number, requirement number, reason state, family state, inputs digest');

-- Audit -----------------------------------------------------------------------------------------------------------

-- One row per state change and per refusal of a caller who has proved a key, written in the same transaction. `body` is
-- built here from references, digests, states and numbers, and hashed as stored.
CREATE TABLE nw.audit (
  id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at      timestamptz NOT NULL,
  verb    nw.verb NOT NULL,
  verdict nw.verdict NOT NULL,
  task_id bigint,
  run_id  bigint,
  effect_id bigint,
  body    bytea NOT NULL,
  digest  bytea NOT NULL CHECK (octet_length(digest) = 32),
  CHECK (digest = sha256(body)));
CREATE INDEX audit_run ON nw.audit (run_id, id) WHERE run_id IS NOT NULL;
SELECT nw.classify('audit', 'id number, at time, verb state, verdict state, task_id number, run_id number, effect_id number, body digest, digest digest');
COMMENT ON COLUMN nw.audit.body IS 'digest: canonical bytes that the verbs build from references, digests, states and numbers';

-- +goose Down
DROP SCHEMA nw CASCADE;
