# Everything a developer types. Bare `make` lists it.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := $(VENV)/.ready-to-run
READY  := $(VENV)/.ready
RUNTIMES := $(VENV)/.ready-runtimes
SITE   := $(VENV)/.ready-site
DIST   := $(VENV)/.ready-dist
NUMPY1 := $(VENV)/numpy1
TRITON := benchmarks/triton/.venv
PIP    := -m pip install --quiet --no-deps --require-hashes -r
PEERS  := nghttp2-client nghttp2-server curl chromium nginx-light haproxy faketime wrk openssl prometheus redis-server

# Several tests at a time: those with real services wait more than they compute. Not where times are
# measured (`alone`), and fewer where one test uses every core.
PAIRS  := -n 2 --dist worksteal
THREES := -n 3 --dist worksteal
FAULTS ?= faults
REAL   ?= real or peers
# The files with such tests: to import all the others takes half of the time of starting to test. A
# mark stands in its test's file, as tests/conftest.py checks, or in that of the folder tests/peers.
# `make examples` and `make test-faults` run the others.
MARKED  = $$(grep -rlE --include='test_*.py' --exclude-dir=examples 'pytest\.mark\.(real|peers)\b' tests) tests/peers
ALONE   = $$(grep -rlE --include='test_*.py' --exclude-dir=examples 'pytest\.mark\.alone\b' tests)

# Installs a lock file into the environment of an interpreter. uv takes seconds where pip takes a minute
# or two; where an index is known to pip only, as by its configuration, pip does it.
install = $(BIN)/uv pip install --quiet --python $(1) --no-deps --require-hashes -r $(2) || $(1) $(PIP) $(2)

.PHONY: help setup setup-dev setup-runtimes demo docs dist test test-pythons check fmt test-real test-faults swaps reloads rolling test-runtimes test-paddle test-paddle-sample laws examples fuzz fuzz-api bench pictures plans peers proto lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

$(DEMO): requirements/uv.txt requirements/demo.txt requirements/data.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) requirements/uv.txt || echo 'without uv, pip installs everything' >&2
	$(call install,$(BIN)/python,requirements/demo.txt)
	$(call install,$(BIN)/python,requirements/data.txt)
	@# The name of the distribution until November 2026, with the same command.
	$(BIN)/python -m pip uninstall --quiet --quiet --yes penstock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(READY): $(DEMO) requirements/dev.txt paddle/pyproject.toml
	$(call install,$(BIN)/python,requirements/dev.txt)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable paddle
	@touch $@

setup: $(DEMO) ## make the virtual environment, with what the demo and the documents' examples need

setup-dev: $(READY) ## add what tests, checks, benchmarks and all examples need

# A gigabyte and a half, of which pip is told a part of the indexes (requirements/README.md). `make test`
# leaves out the tests of a library that is not there.
$(RUNTIMES): $(READY) requirements/runtimes.txt
	$(BIN)/python $(PIP) requirements/runtimes.txt
	@touch $@

setup-runtimes: $(RUNTIMES) ## add Paddle, PyTorch and OpenVINO, for the CPU

# The packages of the first environment, with another numpy before them.
PURELIB := import sysconfig; print(sysconfig.get_path("purelib"))
$(NUMPY1)/.ready: $(RUNTIMES) requirements/numpy1.txt
	$(PYTHON) -m venv $(NUMPY1)
	$(call install,$(NUMPY1)/bin/python,requirements/numpy1.txt)
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(PURELIB)')')" \
		> "$$($(NUMPY1)/bin/python -c '$(PURELIB)')/first.pth"
	@touch $@

$(SITE): $(READY) requirements/docs.txt
	$(call install,$(BIN)/python,requirements/docs.txt)
	@touch $@

demo: $(DEMO) ## recognise text on real pictures over HTTP and gRPC, and show the result
	$(BIN)/python examples/ocr/demo.py

# `make check` runs those of the floors and the documents.
test: $(READY) ## pure and engine tests (six minutes on two cores)
	$(BIN)/python -m pytest $(THREES) -m "not real and not faults and not peers and not long" --ignore tests/examples \
		--ignore tests/test_floors.py --ignore tests/test_docs.py

# The interpreters of PATH and of pyenv. What the tests import, at the newest versions that the
# interpreter has: the lock file is for 3.11. Of rapidocr-onnxruntime they use a model only.
PYTHONS ?= 3.12 3.13 3.14
IMPORTED := pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis schemathesis 'httpx[http2]' h11 httptools \
	uvicorn h2 fastapi grpcio grpcio-health-checking grpcio-reflection psutil onnx onnxruntime pillow msgpack \
	opencv-python-headless requests packaging grpcio-tools shapely pyclipper s3fs 'moto[s3]' flask flask-cors kubernetes-validate
test-pythons: $(READY) ## the tests of `make test` with each of Python 3.12 to 3.14 that is found (minutes each)
	for version in $(PYTHONS); do \
		python=$$(ls -d ~/.pyenv/versions/$$version.*/bin/python 2>/dev/null | tail -1); \
		python=$${python:-$$(command -v python$$version)}; \
		if [ -z "$$python" ]; then echo "Python $$version is not installed: not tried"; continue; fi; \
		echo "Python $$version: $$python"; \
		$$python -m venv $(VENV)/python$$version && \
		$(VENV)/python$$version/bin/python -m pip install --quiet $(IMPORTED) --editable '.[jwt,otel,reload,repository,snappy]' --editable paddle && \
		$(VENV)/python$$version/bin/python -m pip install --quiet --no-deps --ignore-requires-python \
			rapidocr-onnxruntime && \
		$(VENV)/python$$version/bin/python -m pytest $(PAIRS) -m "not real and not faults and not peers" \
			--ignore tests/examples --ignore tests/paddle || exit 1; \
	done

test-real: $(READY) ## real services as processes, real models, real clients (in the gate a quarter of an hour)
	$(BIN)/python -m pytest $(THREES) -m "($(REAL)) and not alone and not law and not faults" $(MARKED)
	$(BIN)/python -m pytest -m "($(REAL)) and alone and not faults" $(ALONE)

test-faults: $(READY) ## break things on purpose, with real processes (in the gate six minutes)
	$(BIN)/python -m pytest $(THREES) -m "($(FAULTS)) and not alone" tests/faults
	$(BIN)/python -m pytest $(PAIRS) -m "($(FAULTS)) and not alone" tests/attacks  # by clients of low priority
	$(BIN)/python -m pytest -m "($(FAULTS)) and alone" tests/faults tests/attacks

swaps: $(READY) ## change a model 100 times under load, half of the versions broken (half an hour)
	$(BIN)/python -m tests.faults.swaps

reloads: $(READY) ## reload a changed program 20 times under load, every other one broken, in all forms (an hour)
	$(BIN)/python -m tests.faults.reloads

rolling: $(READY) ## restart three replicas behind nginx and haproxy, under load (four minutes)
	$(BIN)/python -m tests.faults.rolling --proxy nginx
	$(BIN)/python -m tests.faults.rolling --proxy haproxy

test-runtimes: $(RUNTIMES) ## models in the form of every library (about a minute)
	$(BIN)/python -m pytest $(PAIRS) tests/runtimes

test-paddle: $(NUMPY1)/.ready ## projects for Paddle Serving as they are, with numpy 2 and numpy 1 (minutes)
	$(BIN)/python -m pytest $(PAIRS) tests/paddle
	$(NUMPY1)/bin/python -m pytest $(PAIRS) tests/paddle/test_examples.py tests/paddle/test_paddle_models.py

# A part of `make test-real`, and so of the gate.
test-paddle-sample: $(READY) ## the same with models in ONNX, without Paddle (less than a minute)
	$(BIN)/python -m pytest $(PAIRS) tests/paddle/test_stand_ins.py tests/paddle/test_clients.py

laws: $(READY) ## every model, door, executor and mode of the law of batches, with three seeds (minutes)
	$(BIN)/python -m pytest tests/laws

check: $(READY) ## format, lint, types, floors, spelling, documents (about a minute)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m pytest tests/test_floors.py tests/test_docs.py

# Copied with their paths, so that their links hold. The generator wants a file's name as a title.
PAGES := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE 'docs/*' '*/README.md' 'deploy/*' '*.proto'
docs: $(SITE) ## build the site of the documents, build/site/html (a minute)
	rm -rf build/site
	mkdir -p build/site/pages
	git ls-files -z --cached --others --exclude-standard $(PAGES) | xargs -0 cp --parents -t build/site/pages
	find build/site/pages -name '*.md' -exec sed -Ei 's/^```([a-z]+) ([^ ]+)$$/```\1 title="\2"/' {} +
	$(BIN)/zensical build --strict >build/site/log 2>&1 || { cat build/site/log; exit 1; }
	! grep '^griffe:' build/site/log  # of docstrings; they are no warnings of the generator's own
	$(BIN)/python -m pytest tests/test_site.py

$(DIST): $(READY) requirements/dist.txt
	$(call install,$(BIN)/python,requirements/dist.txt)
	@touch $@

dist: $(DIST) ## build wheels and source distributions, dist/, and try each in a bare environment (minutes)
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist .
	$(BIN)/python -m build --quiet --outdir dist paddle
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m pytest tests/test_dist.py

SECONDS ?= 60
FUZZED ?= tests/schemathesis/service.py tests/schemathesis/models.py $(wildcard $(addprefix examples/*/,app.py *_server.py *_service.py))
fuzz-api: $(READY) ## send 2,000 requests made of its description to each route of each app and example (minutes)
	$(BIN)/python examples/image_classifier/train.py
	$(BIN)/python examples/sentiment/export.py
	OPENBLAS_NUM_THREADS=1 $(BIN)/python examples/textgen/train.py
	$(BIN)/python -m tests.schemathesis.judge $(FUZZED) --cases 2000
	$(BIN)/python -m tests.schemathesis.judge $(filter tests/%,$(FUZZED)) --cases 2000 --keys

fuzz: $(READY) ## give each decoder inputs that are guided by its branches, for a minute each
	for target in $$($(BIN)/python -m tests.fuzz.targets); do \
		$(BIN)/python -m tests.fuzz.run --target $$target --seconds $(SECONDS) || exit 1; done

examples: $(READY) ## every example as a process, asked by its own clients (two minutes)
	$(BIN)/python -m pytest $(PAIRS) -m "not long" tests/examples

pictures: $(READY) ## take the pictures of the live page for the documents (a quarter of an hour)
	$(BIN)/python -m tests.peers.pictures

plans: $(READY) ## what penstock plan predicts of three graphs, beside what is measured (ten minutes)
	$(BIN)/python -m benchmarks.plans

$(TRITON)/.ready: $(READY) benchmarks/triton/requirements.txt
	$(PYTHON) -m venv $(TRITON)
	$(call install,$(TRITON)/bin/python,benchmarks/triton/requirements.txt)
	@touch $@

bench: $(READY) $(TRITON)/.ready ## ratios against bare servers and runtimes, measured in the same run
	$(BIN)/python -m benchmarks

peers: ## install the system programs that tests use as peers (root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $(PEERS)
	command -v npm >/dev/null || apt-get install -y -qq --no-install-recommends npm
	npm ci --prefix tests/peers/node --ignore-scripts --no-audit --no-fund
	$(PYTHON) -m venv tests/peers/triton/.venv
	$(call install,tests/peers/triton/.venv/bin/python,tests/peers/triton/requirements.txt)
	$(PYTHON) -m venv tests/peers/openai/.venv
	$(call install,tests/peers/openai/.venv/bin/python,tests/peers/openai/requirements.txt)

fmt: $(READY) ## format and sort imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

# A pool of their own, so that the original's messages, of the same names, may be there too; and no
# check that protobuf is as new as the compiler, so that the oldest version of pyproject.toml works.
proto: $(READY) ## regenerate the protobuf modules; fails when they differed
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. penstock/protocols/pb/*.proto
	sed -i.old -e 's/_descriptor_pool\.Default()/_descriptor_pool.DescriptorPool()/' \
		-e '/^_runtime_version\./,/^)/d' -e '/ as _runtime_version$$/d' penstock/protocols/pb/*_pb2.py
	rm penstock/protocols/pb/*.old
	cd penstock/protocols/pb && $(abspath $(BIN))/python -m grpc_tools.protoc -I . \
		--descriptor_set_out=standard.binpb grpc/*/*/*.proto inference/*.proto general_model/*.proto
	git diff --exit-code penstock/protocols/pb

LOCK := $(BIN)/uv pip compile --quiet pyproject.toml --python-version 3.11 --no-header --no-annotate --generate-hashes

lock: $(READY) ## pin the newest versions of everything
	$(LOCK) --extra dev -o requirements/dev.txt
	grep -E '^uv==' requirements/dev.txt | cut -d ' ' -f 1 | $(BIN)/uv pip compile --quiet - \
		--python-version 3.11 --no-header --no-annotate --generate-hashes -o requirements/uv.txt
	$(LOCK) --extra docs -c requirements/dev.txt -o requirements/docs.txt
	$(LOCK) --extra dist -c requirements/dev.txt -o requirements/dist.txt
	$(LOCK) --extra demo -c requirements/dev.txt -o requirements/demo.txt
	echo 's3fs>=2025.3' | $(LOCK) - --extra onnx --extra images --extra repository -c requirements/dev.txt \
		-o requirements/image.txt
	echo numpy==1.26.4 | $(BIN)/uv pip compile --quiet - --python-version 3.11 --no-header --no-annotate \
		--generate-hashes -o requirements/numpy1.txt
	$(LOCK) --extra paddle --extra torch --extra openvino --torch-backend cpu \
		-c requirements/dev.txt -o requirements/runtimes.txt

clean: ## remove what the targets made
	rm -rf $(VENV) build dist paddle/build .demo .mypy_cache .ruff_cache .hypothesis
