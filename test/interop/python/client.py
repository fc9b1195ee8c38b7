#!/usr/bin/python3
"""A worker on Debian's python3-cryptography and the standard library, nothing else.

It prints a JSON line for each step, as the other clients of this folder do.
"""

import base64
import hashlib
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def b64(raw):
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Bearer:
    """The bearer of a key that never leaves this process (RFC 9449)."""

    def __init__(self):
        self.key = ec.generate_private_key(ec.SECP256R1())
        at = self.key.public_key().public_numbers()
        self.jwk = {"kty": "EC", "crv": "P-256", "x": b64(at.x.to_bytes(32, "big")), "y": b64(at.y.to_bytes(32, "big"))}
        self.nonces = {}  # by origin
        self.statuses = []

    def proof(self, method, url, token):
        claims = {"htm": method, "htu": url, "iat": int(time.time()), "jti": b64(os.urandom(16))}
        if self.nonces.get(origin(url)):
            claims["nonce"] = self.nonces[origin(url)]
        if token:
            claims["ath"] = b64(hashlib.sha256(token.encode()).digest())
        head = {"typ": "dpop+jwt", "alg": "ES256", "jwk": self.jwk}
        signed = ".".join(b64(json.dumps(part).encode()) for part in (head, claims))
        r, s = decode_dss_signature(self.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return signed + "." + b64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))

    def once(self, url, kind, body, token):
        request = urllib.request.Request(url, data=body, method="POST", headers={"Content-Type": kind, "DPoP": self.proof("POST", url, token)})
        if token:
            request.add_unredirected_header("Authorization", "DPoP " + token)
        try:
            answer = urllib.request.urlopen(request, timeout=20)
        except urllib.error.HTTPError as refused:
            answer = refused
        with answer:
            self.statuses.append(answer.status)
            self.nonces[origin(url)] = answer.headers.get("DPoP-Nonce", self.nonces.get(origin(url)))
            return answer.status, json.loads(answer.read(1 << 20))

    def post(self, url, kind, body, token=None):
        """Repeats once when a nonce is wanted, which says that nothing happened."""
        status, answer = self.once(url, kind, body, token)
        if status in (400, 401) and answer.get("error") == "use_dpop_nonce":
            status, answer = self.once(url, kind, body, token)
        return status, answer

    def form(self, url, **fields):
        return self.post(url, "application/x-www-form-urlencoded", urllib.parse.urlencode(fields).encode())

    def json(self, url, token, document):
        return self.post(url, "application/json", json.dumps(document).encode(), token)


def origin(url):
    parts = urllib.parse.urlsplit(url)
    return parts.scheme + "://" + parts.netloc


def ok(answered):
    status, answer = answered
    if status != 200:
        raise AssertionError("%d %s" % (status, answer))
    return answer


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


class Worker:
    def __init__(self, env):
        self.env = env
        self.me = Bearer()
        self.operation = env["guard"] + "/operations/row.append"

    def discovery(self):
        with urllib.request.urlopen(self.env["issuer"] + "/.well-known/oauth-authorization-server", timeout=20) as answer:
            metadata = json.load(answer)
        expect(metadata["issuer"] == self.env["issuer"], metadata["issuer"])
        self.token_endpoint = metadata["token_endpoint"]

    def component(self):
        token = ok(Bearer().form(self.token_endpoint, grant_type="client_credentials", client_id=self.env["product"],
                                 client_assertion_type=JWT_BEARER, client_assertion=self.env["componentAssertion"]))
        expect(token["token_type"] == "DPoP", token["token_type"])

    def claim(self):
        self.run = ok(self.me.form(self.token_endpoint, grant_type=TOKEN_EXCHANGE, subject_token=self.env["run"],
                                   subject_token_type="urn:nightwarrant:token-type:run-reference", client_id=self.env["client"],
                                   client_assertion_type=JWT_BEARER, client_assertion=self.env["workerAssertion"]))
        expect(self.run["run"]["fence"] > 0, self.run["run"])

    def renew(self):
        self.run = ok(self.me.json(self.env["issuer"] + "/v1/runs/renew", self.run["access_token"], {}))

    def parameters(self, step):
        return {"table": "entries", "values": {"memo": step, "cents": 1250}}

    def minted(self, step, by=None):
        detail = {"type": "urn:nightwarrant:effect", "actions": ["row.append"], "locations": [self.env["guard"]],
                  "identifier": "table:entries", "parameters": self.parameters(step)}
        return (by or self.me).form(self.token_endpoint, grant_type=TOKEN_EXCHANGE, subject_token=self.run["access_token"],
                                    subject_token_type="urn:ietf:params:oauth:token-type:access_token", resource=self.env["guard"],
                                    effect_key=step, authorization_details=json.dumps([detail]))

    def mint(self):
        self.first = ok(self.minted("debit"))

    def call(self, token, step, by=None):
        return (by or self.me).json(self.operation, token, {"resource": "table:entries", "parameters": self.parameters(step)})

    def applied(self, token, step):
        answer = ok(self.call(token, step))
        expect(answer["outcome"] == "committed", answer)

    def guard(self):
        self.applied(self.first["access_token"], "debit")

    def rotation(self):
        self.me.statuses = []
        self.applied(ok(self.minted("credit"))["access_token"], "credit")
        expect(self.me.statuses == [200, 200], self.me.statuses)
        return "2 requests an effect"

    def stale_nonce(self):
        self.me.nonces[origin(self.env["issuer"])] = self.env["staleAuthority"]
        self.me.nonces[origin(self.env["guard"])] = self.env["staleGuard"]
        self.me.statuses = []
        self.applied(ok(self.minted("tax"))["access_token"], "tax")
        expect(self.me.statuses == [400, 200, 401, 200], self.me.statuses)

    def other_key(self):
        thief, last = Bearer(), ok(self.minted("keyed"))
        answers = [self.minted("stolen", thief), self.call(last["access_token"], "keyed", thief)]
        for status, answer in answers:
            expect(status in (400, 401) and answer["error"] in ("invalid_token", "invalid_dpop_proof"), answers)
        return ", ".join(answer["error"] for _, answer in answers)

    def settle(self):
        receipt = ok(self.me.json(self.env["issuer"] + "/v1/runs/settle", self.run["access_token"], {"result": "succeeded"}))
        expect(receipt["state"] == "succeeded" and receipt["committed"] == 3, receipt)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        worker = Worker(json.load(file))
    for name in ("discovery", "component", "claim", "renew", "mint", "guard", "rotation", "stale nonce", "other key", "settle"):
        try:
            note = getattr(worker, name.replace(" ", "_"))()
            print(json.dumps({"step": name, "ok": True, "note": note or ""}), flush=True)
        except Exception as error:  # told, and the next step fails by itself
            print(json.dumps({"step": name, "ok": False, "note": "%s: %s" % (type(error).__name__, error)}), flush=True)


main()
