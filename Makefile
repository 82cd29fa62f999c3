# make runs what must pass before a commit; CI runs the same.

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT = github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.9.0
FUZZTIME ?= 10s
N ?= 60

# Directories below the root that have a go.mod.
NESTED = $(patsubst %/go.mod,%,$(shell git ls-files '*/go.mod'))

.PHONY: all
all: fmt tidy lint test

.PHONY: fmt
fmt: # fails if a Go file is not formatted
	@files=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$files" || { echo "gofmt: $$files"; exit 1; }

.PHONY: tidy
tidy:
	@for d in . $(NESTED); do (cd $$d && GOWORK=off go mod tidy -diff) || exit 1; done

.PHONY: cross
cross: # builds the packages that depend on the system for Windows; a workflow tests all packages there and on macOS
	@packages=$$(GOOS=windows go list -f '{{.ImportPath}} {{.IgnoredGoFiles}} {{.Imports}}' ./... ./benchmark/reclab | awk '/_(unix|other|linux|windows|darwin)\.go|[ []syscall[] ]/ { print $$1 }'); \
	GOOS=windows go build $$packages

.PHONY: lint
lint:
	go run $(STATICCHECK) ./... ./benchmark/... ./dnshedge/quic/...
	go run $(ACTIONLINT)
	@! git grep -nE 'TO''DO|FIX''ME|XX''X' -- ':!Makefile'

.PHONY: test
test: # also vets all packages
	go test -vet=all -race -short -shuffle=on -timeout 20m $$(go list ./... | grep -v /test/repo) # newcomer runs all without the race detector
	go test -vet=all -short ./test/repo
	$(MAKE) -j 2 test-recipes test-nested test-benchmark test-simulations # two at a time, because compilers and waiting tests fill each other's gaps

.PHONY: test-recipes
test-recipes: # the race detector would build all clients of others once more; resolvers waits longest, and is built first
	go -C integration test -vet=all -shuffle=on ./resolvers ./...
	go -C integration/coredns test -vet=all -shuffle=on ./...

.PHONY: test-nested
test-nested:
	@for d in $(filter-out benchmark integration%,$(NESTED)); do (cd $$d && go test -vet=all -race -shuffle=on ./...) || exit 1; done

.PHONY: test-benchmark
test-benchmark:
	go -C benchmark test -vet=all -race -short -shuffle=on ./...

.PHONY: test-simulations
test-simulations: # the race detector makes simulations ten times slower; simulate computes longest, and is built first
	go -C benchmark test -shuffle=on ./simulate ./reclab ./...

.PHONY: test-nogrpc
test-nogrpc: # without gRPC, for whatever is not about it
	go vet -tags hedge_nogrpc ./...
	.ci/must-test -tags hedge_nogrpc -short -shuffle=on $$(go list -tags hedge_nogrpc -f '{{if .XTestGoFiles}}{{.ImportPath}}{{end}}' . ./debug ./test/...)
	cd hedgeprom && ../.ci/must-test -tags hedge_nogrpc -short -shuffle=on ./...
	go -C hedgeotel vet -tags hedge_nogrpc ./...

.PHONY: floors
floors: # what users get with the oldest Go and the oldest modules that go.mod allows, on 32 bits
	@.ci/floors

.PHONY: test-386
test-386: # integers have 32 bits there: without the long tests, and without those of real servers, worlds, examples and of the repository
	CGO_ENABLED=0 GOARCH=386 go test -short -shuffle=on -timeout 20m $$(go list ./... | grep -vE '/(internal/(livetests|worlds)|examples|test/repo)(/|$$)')

.PHONY: fuzz
fuzz: # runs each target for FUZZTIME
	@.ci/fuzz $(FUZZTIME)

.PHONY: worlds
worlds: # plays worlds from a new number on for N seconds, with WORLDS_NEED=over=dns those of DNS only, see internal/worlds
	WORLDS_SECONDS=$(N) go test -count=1 -timeout 24h -run ANewNumber -v ./internal/worlds

.PHONY: bench
bench:
	go test -run '^$$' -bench . -count 6 ./benchmark

.PHONY: simulate
simulate:
	go run ./benchmark/simulate -quick
	go run ./benchmark/simulate -quick -engine endpoints -scenario all

.PHONY: weight
weight: # what programs with hedge carry: sizes and modules, with limits
	go run ./benchmark/weight

.PHONY: examples
examples: # runs each once; some are modules of their own
	@for d in examples/*/; do echo "$$d"; args=; case $$d in */dnsforward/) args="-for 2s";; esac; go -C $$d run . $$args || exit 1; done

.PHONY: api
api: # writes what is exported into the files that TestAPIIsAsWritten compares with
	HEDGE_WRITE_API=1 .ci/must-test -count=1 -run '^TestAPIIsAsWritten$$' ./test/repo
	@for d in hedgeprom hedgeotel dnshedge/quic; do (cd $$d && HEDGE_WRITE_API=1 $(CURDIR)/.ci/must-test -count=1 -run '^TestAPIIsAsWritten$$' .) || exit 1; done

.PHONY: build
build: # every module
	go build ./...
	@for d in $(NESTED); do (cd $$d && go build ./...) || exit 1; done

.PHONY: vulnerabilities
vulnerabilities: # compares every module with those that are known, and names all that are found
	@failed=; for d in . $(NESTED); do echo "$$d"; (cd $$d && go run $(GOVULNCHECK) ./...) || failed="$$failed $$d"; done; test -z "$$failed" || { echo "vulnerable:$$failed"; exit 1; }

.PHONY: newcomer
newcomer: # what README and examples/README.md say, in an empty environment, without rights: minutes
	@.ci/newcomer

.PHONY: release-check
release-check: # is the tree ready for a release? With VERSION=v1.2.3, as that version: see docs/design/releasing.md
	@.ci/release-check $(VERSION)

.PHONY: release-files
release-files: # writes the source, SBOMs, notes and checksums of the tag VERSION into dist
	@.ci/release-files $(VERSION)

.PHONY: release
release: # prepares the go.mod files for VERSION=v1.2.3, and nothing else: see docs/design/releasing.md
	@.ci/release $(VERSION)

.PHONY: readme
readme: # measures README's table and its picture in one run: three minutes
	go run ./benchmark/simulate -readme README.md

.PHONY: tables
tables: # measures again what the tables of the documents show, and writes it into them
	go run ./benchmark/simulate -readme README.md,docs/design/benchmarks.md,docs/design/benchmarks-dns.md,docs/design/benchmarks-ranges.md
