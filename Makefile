# Every target sets up what it needs. Nothing is assumed but Linux and Python 3.11 with venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
SOURCES := setup.py pyproject.toml $(wildcard src/tailrace/kernels/*.py src/tailrace/kernels/shared/*.p*)
SEED ?= 1
RUNS ?= 300
FRAMEWORKS := $(dir $(wildcard packages/*/pyproject.toml))
CODE := src packages tests tools benchmarks deploy setup.py

.DEFAULT_GOAL := help
.PHONY: help setup demo docs test long object-store sanitize release-check check check-types check-rest fmt golden crash sim soak fuzz audit mutants interop with-pair bench \
	bench-client bench-field bench-peer bench-recovery bench-replication bench-requests bench-retention bench-timers console-pictures \
	gen dist clean

help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit("Tailrace needs Python 3.11 or later, this is %s" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.tools: requirements/build.txt $(VENV)/.made
	$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements/build.txt
	@touch $@

$(VENV)/.packages: requirements/dev.txt $(VENV)/.tools
	$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

# Kernels are compiled here when there is a C compiler; without one they run interpreted. An editable install
# compiles no module to bytecode, and with PYTHONDONTWRITEBYTECODE each start would do that again, in half a second.
$(VENV)/.compiled: $(VENV)/.tools $(SOURCES)
	$(PY) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(PY) -m compileall -q src/tailrace
	@touch $@

# Kernels are compiled while packages are loaded.
$(VENV)/.installed: requirements/dev.txt $(VENV)/.tools $(SOURCES) $(FRAMEWORKS:%=%pyproject.toml)
	@$(MAKE) --no-print-directory -j2 $(VENV)/.packages $(VENV)/.compiled
	$(PY) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation $(FRAMEWORKS:%=-e ./%)
	@$(PY) tools/point_spark_here.py
	@touch $@

$(VENV)/.audit: requirements/audit.txt $(VENV)/.installed
	$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements/audit.txt
	@touch $@

$(VENV)/.fuzz: requirements/fuzz.txt $(VENV)/.installed
	$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements/fuzz.txt
	@touch $@

$(VENV)/.object-store: requirements/object-store.txt requirements/versitygw/go.sum $(VENV)/.installed
	$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements/object-store.txt
	if command -v go >/dev/null; then cd requirements/versitygw && \
	  GOFLAGS="-buildvcs=false -mod=readonly" go build -o $(abspath $(VENV))/bin/ github.com/versity/versitygw/cmd/versitygw; fi
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.installed
	$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

setup: $(VENV)/.installed  ## The environment in .venv, which every other target makes by itself

$(VENV)/.user-packages: requirements/spark.txt requirements/sql.txt requirements/grpc.txt $(VENV)/.tools
	$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements/spark.txt \
	  -r requirements/sql.txt -r requirements/grpc.txt
	@touch $@

# The demo needs what users install, not the tools of dev.txt.
$(VENV)/.demo: requirements/spark.txt requirements/sql.txt requirements/grpc.txt $(VENV)/.tools $(SOURCES)
	@if [ ! -e $(VENV)/.installed ]; then \
	  $(MAKE) --no-print-directory -j2 $(VENV)/.user-packages $(VENV)/.compiled && \
	  $(PY) tools/point_spark_here.py; fi
	@touch $@

demo: $(VENV)/.demo  ## The main job as a short story: serve, send, kill, recover, query, Spark
	$(PY) tools/demo.py

# Without --quiet, which hides the warnings that --strict counts.
docs: $(VENV)/.docs  ## The site of docs/ in build/site, its API reference included; a dead link fails
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "open build/site/index.html"

test: $(VENV)/.installed  ## All tests except those of make long, in one process more than processors; those of bytes once more with interpreted kernels
	$(PY) tools/run_tests.py $(RUN_TESTS)

long: $(VENV)/.installed $(VENV)/.docs $(VENV)/.audit $(VENV)/.fuzz $(VENV)/.object-store  ## The long tests that make test leaves out, fuzzing, and pyright if npm is there
	$(PY) tools/run_tests.py --long $(RUN_TESTS)
	if command -v npm >/dev/null; then $(MAKE) build/pyright; fi
	$(PY) -m pytest tests/integration/test_pyright.py
	SEED=$(SEED) SECONDS=$(or $(SECONDS),60) $(PY) tools/fuzz.py
	$(PY) tools/lane_frames.py
	$(MAKE) --no-print-directory sanitize

object-store: $(VENV)/.object-store  ## Archives and tables in SeaweedFS and, with Go, versitygw: servers of S3 on loopback, with injected faults; SEED=n
	TAILRACE_LONG=1 SEED=$(SEED) $(PY) -m pytest -q tests/contract/test_archive_stores.py \
	  tests/unit/spark/archive/test_object_archive.py tests/unit/spark/lake/test_bucket_tables.py \
	  tests/spark/test_bucket_commands.py

sanitize: $(VENV)/.fuzz  ## Kernels, lanes and hostile frames under the address sanitizer of GCC; FRAMES=n, SECONDS=n, SEED=n
	SEED=$(SEED) SECONDS=$(or $(SECONDS),60) $(PY) tools/sanitized_kernels.py

fuzz: $(VENV)/.fuzz  ## Fuzz what reads bytes of others, guided by coverage; SECONDS=n for each target, SEED=n, ONLY=target
	SEED=$(SEED) SECONDS=$(or $(SECONDS),60) $(PY) tools/fuzz.py

# A test that passes only the second time is a race to find, so a release has none.
release-check:  ## All that a commit must pass before a release; a test that needs a second try fails
	$(MAKE) --no-print-directory RUN_TESTS=--no-reruns check docs test long crash sim soak interop audit

audit: $(VENV)/.audit  ## Known vulnerabilities of the locked packages; ADVISORIES=all.zip of OSV works without a network
	$(PY) tools/audit.py

build/pyright:  # a type checker beside mypy, for tests/integration/test_pyright.py
	npm install --silent --no-save --prefix build/pyright pyright@1.1.414

# Types take as long as all the rest.
check: $(VENV)/.installed  ## Layout, lint, types, import rules, documents and their words
	@$(MAKE) --no-print-directory -j2 -Otarget check-types check-rest

check-types:
	$(VENV)/bin/mypy

check-rest:
	$(VENV)/bin/ruff check $(CODE)
	$(VENV)/bin/lint-imports
	$(PY) tools/gen_kernels.py --check
	$(PY) tools/gen_reference.py --check
	$(PY) tools/gen_threat_model.py --check
	$(PY) tools/gen_pictures.py --check
	$(PY) tools/check_documents.py
	$(PY) tools/check_words.py

fmt: $(VENV)/.installed  ## Mend what the linter can mend, layout included
	$(VENV)/bin/ruff check --fix $(CODE)

golden: $(VENV)/.installed  ## Rewrite tests/golden: every format, byte for byte
	$(PY) tools/golden.py

SMALLER = $(shell grep -rlE 'from long_runs import' tests/unit)

crash: $(VENV)/.installed  ## All cases of the crash tests, the long crash sweep, faults and kills; SEED=n replays one
	TAILRACE_LONG=1 SEED=$(SEED) $(PY) -m pytest -q -n 3 --dist loadfile tests/crash $(SMALLER)
	SEED=$(SEED) $(PY) tools/crash_sweep.py
	SEED=$(SEED) $(PY) tools/fault_matrix.py
	SEED=$(SEED) $(PY) tools/kill_loop.py
	SEED=$(SEED) $(PY) tools/rebuild_kills.py
	SEED=$(SEED) $(PY) tools/pipeline_kills.py
	SEED=$(SEED) $(PY) tools/timer_sim.py
	SEED=$(SEED) $(PY) tools/broker_sweep.py
	SEED=$(SEED) $(PY) tools/broker_kills.py
	SEED=$(SEED) $(PY) tools/replication_kills.py
	SEED=$(SEED) $(PY) tools/pop_sim.py
	$(PY) tools/enospc_run.py

sim: $(VENV)/.installed  ## Whole stores, clients on a network, and masters with slaves, simulated from seeds; SEED=n runs and replays one
	SEED=$(SEED) RUNS=$(if $(filter command environment,$(firstword $(origin SEED))),1,$(RUNS)) $(PY) tools/sim.py
	SEED=$(SEED) RUNS=$(if $(filter command environment,$(firstword $(origin SEED))),1,$(RUNS)) $(PY) tools/client_sim.py
	SEED=$(SEED) RUNS=$(if $(filter command environment,$(firstword $(origin SEED))),1,$(RUNS)) $(PY) tools/replication_sim.py

soak: $(VENV)/.installed  ## The worst request of every code, and attacks, to a running server; SECONDS=n or ROUNDS=n, SEED=n
	SECONDS=$(or $(SECONDS),0) ROUNDS=$(or $(ROUNDS),3) $(PY) tools/worst_requests.py
	SEED=$(SEED) $(PY) tools/hostile_runs.py

mutants: $(VENV)/.installed  ## Random faults that no test notices, about 10 s each; SEED=n, RUNS=n; needs coverage
	SEED=$(SEED) RUNS=$(if $(filter command environment,$(firstword $(origin RUNS))),$(RUNS),50) \
		$(PY) tools/mutants.py

interop: $(VENV)/.installed  ## Conformance with the reference: needs Maven and a JDK
	tests/interop/conformance/run dump-equals-reference java-client spark damage timers

with-pair: $(VENV)/.installed  ## PROGRAM='...' against a master with a slave, e.g. Apache's tests; SLAVE=ours or java, ROLE, FLUSH
	SLAVE=$(or $(SLAVE),ours) $(PY) tools/with_pair.py $(PROGRAM)

bench: $(VENV)/.installed  ## Our own figures, as JSON lines
	$(PY) benchmarks/macro/store.py

bench-peer: $(VENV)/.installed  ## The same beside the reference in one run: needs Maven and a JDK
	$(PY) benchmarks/macro/peer.py

$(VENV)/.field: requirements/field.txt $(VENV)/.installed
	$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements/field.txt
	@touch $@

bench-field: $(VENV)/.field  ## Beside RocketMQ, Kafka, NATS, Redis, RabbitMQ, SQLite and LMDB, as far as this machine has them
	$(PY) benchmarks/field/field.py

bench-client: $(VENV)/.installed  ## The Python client against our server: send, push, latency, batches
	$(PY) benchmarks/macro/client.py

bench-timers: $(VENV)/.installed  ## Timers beside the reference: needs Maven and a JDK
	$(PY) benchmarks/macro/timers.py

bench-replication: $(VENV)/.installed  ## Pairs and two brokers of a cluster beside the reference: needs Maven and a JDK
	$(PY) benchmarks/macro/replication.py

bench-requests: $(VENV)/.installed  ## Transactions, POP and filters beside the reference: needs Maven and a JDK
	$(PY) benchmarks/macro/broker_requests.py

bench-retention: $(VENV)/.installed  ## Deletion beside traffic and the reference: needs Maven, a JDK and 50 GB
	$(PY) benchmarks/macro/retention.py

bench-recovery: $(VENV)/.installed  ## Opens: after a kill, rebuilt, grown, a sparse terabyte
	$(PY) benchmarks/macro/recovery.py

gen: $(VENV)/.installed  ## Write docs/reference and the pictures again
	$(PY) tools/gen_kernels.py
	$(PY) tools/gen_reference.py
	$(PY) tools/gen_threat_model.py
	$(PY) tools/gen_pictures.py
	$(PY) tools/draw_examples.py

console-pictures: $(VENV)/.installed  ## Take the pictures of the console again, with a browser from npm
	$(PY) tools/console_pictures.py

dist: $(VENV)/.audit  ## sdist, wheel and bill of materials (CycloneDX); wheels of the packages for frameworks
	$(PY) -m build --no-isolation
	for package in $(FRAMEWORKS); do $(PY) -m build --no-isolation --wheel --outdir dist $$package || exit 1; done
	$(PY) tools/sbom.py

clean:  ## Remove what was built
	rm -rf build dist $(VENV) src/tailrace/kernels/_compiled/*.so
