# Every target does its own set-up. Versions of tools are pinned here and fetched through the Go module proxy.
SHELL       := /bin/bash
GO          ?= go
TESTFLAGS   ?= -race -vet=off -count=1 -timeout 15m
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOTESTSUM   := gotest.tools/gotestsum@v1.13.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@latest
SOURCES     := $(shell find . -path ./build -prune -o -path '*/node_modules' -prune -o -type f \( -name '*.go' -o -name '*.sql' -o -name '*.tmpl' -o -name '*.html' -o -name '*.css' -o -name '*.js' -o -name '*.svg' \) -print) go.mod go.sum

# The race detector has every program sleep for a second before it ends, in case that a goroutine still races. Here none outlives its test.
export GORACE ?= atexit_sleep_ms=10

.PHONY: build keyhost demo dev test campaigns pages history-long rotation-long conformance interop spire mutants tripwire release test-fips bench bench-keyhost closing closing-long lint vet staticcheck vuln fuzz clean

build: bin/nightwarrant

bin/nightwarrant: $(SOURCES)
	CGO_ENABLED=0 $(GO) build -trimpath -o $@ ./cmd/nightwarrant

# The key host loads a vendor's library, and is the only program that needs a C compiler.
bin/nightwarrant-keyhost: $(SOURCES)
	@scripts/ensure-cc.sh
	CGO_ENABLED=1 $(GO) build -trimpath -o $@ ./cmd/nightwarrant-keyhost

keyhost: bin/nightwarrant-keyhost

# The main job, from a member's yes to the evidence, with everything closed once in between, then the nine attacks: real processes, PostgreSQL and NATS on this machine.
demo: build
	@[ -n "$$NIGHTWARRANT_DATABASE_URL" ] || scripts/ensure-postgres.sh
	bin/nightwarrant demo

# The same stack, kept up; its data stays in .dev and survives a restart.
dev: build
	@[ -n "$$NIGHTWARRANT_DATABASE_URL" ] || scripts/ensure-postgres.sh
	bin/nightwarrant dev

# The runner of the tests is compiled with the flags of make build, as the programs are that tests start: what they have in common is compiled once.
# What attacks the whole instead of a part, whole stories, and the guards whose processes are killed at every step, take as long as half of
# everything else: make campaigns. So does a browser: make pages. CI runs all three. One package more is tested than there are processors: one
# that waits for a clock leaves its own to the next.
CAMPAIGNS := planted history failover rotation interop
STORIES   := TheWholeStory|FromABackupToAnOpenGate|AScriptOfTenLines
PACKAGES   = $(shell $(GO) list ./... | grep -vE '/test/($(subst $() ,|,$(CAMPAIGNS)))$$')

test: build/tools/gotestsum
	@scripts/ensure-postgres.sh
	@scripts/ensure-cc.sh
	@scripts/ensure-softhsm.sh
	build/tools/gotestsum --format pkgname-and-test-fails -- $(TESTFLAGS) -p $$(($$(nproc) + 1)) -skip '^Test((Conformance|$(STORIES))$$|Browser)' $(PACKAGES)

# The pages as people see them, in Chromium: with a mouse, with the keyboard alone, without JavaScript, 320 px wide, and held against WCAG 2.2 AA.
pages: build/tools/gotestsum
	@scripts/ensure-postgres.sh
	@scripts/ensure-cc.sh
	@scripts/ensure-chromium.sh
	build/tools/gotestsum --format pkgname-and-test-fails -- $(TESTFLAGS) -run '^TestBrowser' ./console

# With the flags of make build, so that it shares what that compiles.
build/tools/gotestsum: Makefile
	@GOBIN=$(CURDIR)/build/tools CGO_ENABLED=0 $(GO) install -trimpath $(GOTESTSUM)

# Bugs that were planted, recorded histories, lost databases, rotations under load, clients that we did not write, guards that are killed, and
# whole stories: the demo's, searched for secrets; from a backup to an open gate; an old script.
campaigns: export PATH := $(CURDIR)/build/node/bin:$(PATH)
campaigns: build/tools/gotestsum
	@scripts/ensure-postgres.sh
	@scripts/ensure-cc.sh
	@scripts/ensure-node.sh
	build/tools/gotestsum --format pkgname-and-test-fails -- $(TESTFLAGS) $(CAMPAIGNS:%=./test/%)
	build/tools/gotestsum --format pkgname-and-test-fails -- $(TESTFLAGS) -run '^Test(Conformance|$(STORIES))$$' ./guards/postgres ./guards/http ./guards/model ./internal/demo ./cmd/nightwarrant

# Rotations of keys under load, on three replicas: make rotation-long ROTATIONS=10 ROTATION_CLAIMS=100
ROTATIONS ?= 10
ROTATION_CLAIMS ?= 100
rotation-long:
	@scripts/ensure-postgres.sh
	NIGHTWARRANT_ROTATIONS=$(ROTATIONS) NIGHTWARRANT_ROTATION_CLAIMS=$(ROTATION_CLAIMS) $(GO) test ./test/rotation -count=1 -timeout 1h -v -run TestRotationUnderLoad

# Recorded histories and races (test/history), many times over: make history-long HISTORIES=100
HISTORIES ?= 20
history-long:
	@scripts/ensure-postgres.sh
	@scripts/ensure-cc.sh
	$(GO) test ./test/history -race -count=1 -timeout 12h -v -run 'History|Race' -histories $(HISTORIES) -races $$((1000 * $(HISTORIES)))

# Our three guards against guards/guardtest, with so many of their processes killed, each: make conformance KILLS=1000. The journal of
# two of them is killed as often while it writes. In make campaigns it is 9, one at each step, beside the cases that kill once; in make test, 6.
KILLS ?= 170
conformance:
	@scripts/ensure-postgres.sh
	NIGHTWARRANT_GUARDTEST_KILLS=$(KILLS) $(GO) test ./guards/... -run 'Conformance|KilledAtAnyMoment' -count=1 -timeout 12h -v

# Clients that we did not write, against a fresh stack: a table client × step. Node 20 and npm's registry for those of npm, python3-cryptography for Python's.
interop: export PATH := $(CURDIR)/build/node/bin:$(PATH)
interop:
	@scripts/ensure-postgres.sh
	@scripts/ensure-node.sh
	@$(GO) test ./test/interop -count=1 -timeout 15m -v

# A run claimed with a JWT-SVID of a real SPIRE server and agent, which are built from their public module: a table step × outcome. The first build takes long.
spire:
	@scripts/ensure-postgres.sh
	@scripts/ensure-cc.sh
	cd tools/spire && $(GO) build -o $(CURDIR)/build/spire/ github.com/spiffe/spire/cmd/spire-server github.com/spiffe/spire/cmd/spire-agent
	@NIGHTWARRANT_SPIRE=$(CURDIR)/build/spire $(GO) test -tags spire ./test/spire -count=1 -timeout 15m -v

# Each bug that was found before is planted once more; the suite must catch every one.
mutants:
	@scripts/ensure-postgres.sh
	@scripts/mutants.sh

# The program that is given out, on the validated Go module: only when this very build passes its self-audit on a stack of its own.
release:
	@case " $(RELEASE_TAGS) $(GOFLAGS) " in *nightwarrant_synthetic*) echo "release: no release takes a software token for a real one (nightwarrant_synthetic)" >&2; exit 1;; esac
	@scripts/ensure-postgres.sh
	rm -rf build/release build/unaudited
	CGO_ENABLED=0 GOFIPS140=v1.0.0 $(GO) build -trimpath -tags "$(RELEASE_TAGS)" -o build/unaudited/nightwarrant ./cmd/nightwarrant
	@GO="$(GO)" scripts/check-release.sh build/unaudited/nightwarrant
	scripts/tripwire.sh build/unaudited/nightwarrant
	mv build/unaudited build/release

# The self-audit passes on a stack of this build, and names each of the weaknesses that are planted in it.
tripwire:
	@scripts/ensure-postgres.sh
	NIGHTWARRANT_TRIPWIRE=1 $(GO) test ./test/planted -run Tripwire -count=1 -timeout 60m -v

# The whole story where FIPS is required, under GODEBUG=fips140=only, and each refusal: FIPS_MODULES="v1.0.0 v1.26.0" or one of them; FIPS_RUN=WholeStory is the story alone.
FIPS_MODULES ?= v1.0.0 v1.26.0
FIPS_RUN     ?= .
test-fips:
	@scripts/ensure-postgres.sh
	@scripts/ensure-cc.sh
	@scripts/ensure-softhsm.sh
	NIGHTWARRANT_FIPS_MODULES="$(FIPS_MODULES)" $(GO) test -tags fips ./test/fips -run $(FIPS_RUN) -count=1 -timeout 30m -v

bench: build
	@scripts/ensure-postgres.sh
	bin/nightwarrant bench --json

# Signing through the key host against the same library asked directly, with SoftHSM: JSON on a line of its own.
bench-keyhost:
	@scripts/ensure-cc.sh
	@scripts/ensure-softhsm.sh
	@NIGHTWARRANT_BENCH_KEYHOST=1 $(GO) test ./cmd/nightwarrant-keyhost -run '^TestSpeed$$' -count=1 -v | grep '^{'

# Each kind of fault once, on private servers, and how soon everything is closed; five of each and 200 closes by hand: bin/nightwarrant bench closing --json
closing: build
	@scripts/ensure-postgres.sh
	@scripts/ensure-faketime.sh
	bin/nightwarrant bench closing --json --injections 1 --explicit 15 --clean 10s

closing-long: build
	@scripts/ensure-postgres.sh
	@scripts/ensure-faketime.sh
	bin/nightwarrant bench closing --json --injections 30 --explicit 1000 --clean 10m

# golangci-lint runs go vet and staticcheck too; each alone: make vet staticcheck
lint:
	@scripts/ensure-cc.sh
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) run $(GOLANGCI) run ./...
	$(GO) vet -tags spire ./test/spire
	@scripts/lint-openapi.sh

vet:
	$(GO) vet ./...

staticcheck:
	$(GO) run $(STATICCHECK) ./...

# Needs the vulnerability database.
vuln:
	$(GO) run $(GOVULNCHECK) ./...

# Each fuzz target for a while: make fuzz FUZZTIME=5m
FUZZTIME ?= 20s
fuzz:
	@scripts/fuzz.sh $(FUZZTIME)

clean:
	rm -rf bin build
