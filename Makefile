# Everything a newcomer needs: `make demo` and `make test`. Both set up what they use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint docs results bench fuzz crash audit-deps format lock clean

# One virtual environment; each stamp says which locked set it holds.
$(VENV)/.base: requirements/base.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/base.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	touch $@

demo: $(VENV)/.base
	$(BIN)/surestep run examples/07_claims.py --budget 1m --out runs/demo

# What is quick enough to wait for: one variant of everything, compiled without much optimization.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Everything, as often as it takes, compiled as users compile it; then the quick tests once more, with
# every annotation checked.
test-all: $(VENV)/.dev
	SURESTEP_TESTS=all $(BIN)/python -m pytest -n 2 --dist worksteal
	SURESTEP_TYPES=on $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# The site in build/site; a broken link or a page that loads from another host is an error.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --quiet

# docs/results.md from the records in docs/results/ and benchmarks/results.md.j2.
results: $(VENV)/.base
	$(BIN)/python benchmarks/results.py

bench: $(VENV)/.base
	$(BIN)/python -m benchmarks --out build/bench
	$(BIN)/python -m benchmarks.tightness

# A million files that are almost right, and a run that is killed 300 times (docs/safety.md).
fuzz: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m house.fuzz --inputs 1000000

crash: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m house.crash --kills 300

# Known vulnerabilities of everything that is installed with surestep, and the list of it. A
# dependency that the service does not know about is an error too: it was not checked.
audit-deps: $(VENV)/.base
	test -x $(BIN)/pip-audit || $(BIN)/python -m pip install --quiet --disable-pip-version-check "pip-audit>=2.9,<3" "cyclonedx-bom>=7,<8"
	mkdir -p build
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible -o build/sbom.json requirements/base.txt
	$(BIN)/pip-audit --strict --disable-pip --no-deps -r requirements/base.txt

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Pinned versions for repeatable installs, one file for all supported Pythons.
lock: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --extra problems --extra tables pyproject.toml -o requirements/base.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --extra problems --extra tables --extra export --extra test --extra lint -c requirements/base.txt pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --extra problems --extra tables --extra docs -c requirements/dev.txt pyproject.toml -o requirements/docs.txt

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .ruff_cache
