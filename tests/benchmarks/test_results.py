"""docs/results.md is what its script makes from the stored records."""

import json

import pytest

from benchmarks import results

FACTS = {"problem", "seed", "version", "device", "jax", "precision", "source"}
RECORDS = sorted(
    path for path in results.STORED.rglob("*.json") if not path.name.startswith("certificate-")
)
RUNS = [path for path in RECORDS if path.name != "certificate.json"]


def test_the_page_is_made_from_the_records_byte_for_byte():
    assert results.page().encode() == results.PAGE.read_bytes()


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(results.STORED)))
def test_every_run_says_where_its_numbers_come_from(path):
    runs = json.loads(path.read_text())["runs"]
    assert runs
    for run in runs:
        assert set(run) >= FACTS
    seeds = [json.dumps([run["seed"], run.get("objective"), run["problem"]]) for run in runs]
    assert len(set(seeds)) == len(seeds)


def test_another_number_in_a_record_is_another_page(monkeypatch):
    read = results.read

    def changed(name):
        found = read(name)
        if name == "best/lasso/runs.json":
            found["runs"][0]["gradients"]["learned"][0]["p90"] = "22"
        return found

    monkeypatch.setattr(results, "read", changed)
    page = results.page()
    assert "| 1 | 18/22, 35/48, 196/498 |" in page
    assert "| 1 | 18/21, 35/48, 196/498 |" not in page


def test_numbers_keep_their_digits():
    stored = results.read("best/network/runs.json")["runs"][6]["mean_loss"]
    assert results.cell(stored["Adam from the learned start"]) == "19.6 / 2.74 / 1"
    assert results.cell({"median": "30", "p90": None}) == "30/-"
    assert results.cell([{"median": "1", "p90": "2"}, {"median": "4", "p90": "5"}]) == "1/2, 4/5"
    assert results.span(["1e-3", "2e-4", "0.5"]) == "2e-4 to 0.5"
    assert results.span(["6", "6"]) == "6"


def test_certificates_are_quoted_with_their_own_digits():
    found = results.certificate("best/image/certificate-2000.json")
    stored = json.loads((results.STORED / "best/image/certificate-2000.json").read_text())
    value = next(s["value"] for s in stored["statements"] if s["name"] == "missing the goal")
    assert float(found["success"]) <= 1 - value < float(found["success"]) + 1e-4
    assert (found["instances"], found["iterations"], found["clip"]) == ("2000", "12", "2710")
