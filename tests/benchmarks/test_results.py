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
            found["runs"][0]["gradients"]["learned"][0]["p90"] = "99"
        return found

    monkeypatch.setattr(results, "read", changed)
    page = results.page()
    assert "| learned | 17 to 21 | 19 to 99 |" in page
    assert "| learned | 17 to 21 | 19 to 25 |" not in page


def test_numbers_keep_their_digits():
    stored = results.read("best/network/runs.json")["runs"][6]["mean_loss"]
    assert results.cell(stored["Adam from the learned start"]) == "19.6 / 2.74 / 1"
    assert results.cell({"median": "30", "p90": None}) == "30/-"
    assert results.cell([{"median": "1", "p90": "2"}, {"median": "4", "p90": "5"}]) == "1/2, 4/5"
    assert results.cell(["16", None, None]) == "16 / - / -"


def test_a_span_goes_from_the_smallest_to_the_largest():
    runs: list[results.Record] = [
        {"a": {"b": ["1e-3", None, "6"]}},
        {"a": {"b": ["2e-4", "5", "6"]}},
    ]
    assert results.along(runs, "a", "b", 0) == ["1e-3", "2e-4"]
    assert results.span(runs, "a", "b", 0) == "2e-4 to 1e-3"
    assert results.span(runs, "a", "b", 1) == "5 to -"
    assert results.span(runs, "a", "b", 2) == "6"


def test_what_the_page_says_of_all_seeds_is_true_of_each():
    """Ten of ten seeds, six of ten, nine of ten: the template's words, from the records."""

    def runs(name):
        return json.loads((results.STORED / name).read_text())["runs"]

    for run in runs("best/network/runs.json"):
        means = run["mean_loss"]
        for opponent in ("Adam, tuned", "L-BFGS"):
            pairs = zip(means["learned"], means[opponent], strict=True)
            assert all(ours < theirs for ours, theirs in pairs)
    better = [
        run["mean_loss"]["L-BFGS from the learned start"][2] < run["mean_loss"]["learned"][2]
        for run in runs("best/network/runs.json")
    ]
    assert (sum(better), len(better)) == (6, 10)
    for name, sooner in (("runs", 10), ("from-0", 9)):
        found = [run["gradients"] for run in runs(f"best/lasso/{name}.json")]
        assert len(found) == 10
        for share in ("median", "p90"):
            assert all(
                2 * one["learned"][1][share] <= one["FISTA with restart"][1][share] for one in found
            )
        assert (
            sum(one["ADMM, tuned"][2]["p90"] < one["learned"][2]["p90"] for one in found) == sooner
        )
    for run in runs("best/mnist/runs.json"):
        ours, adam = (run["solvers"][name] for name in ("learned", "Adam, tuned"))
        assert 2 * ours["iterations_to_all_right"][0] <= adam["iterations_to_all_right"][0]


def test_certificates_are_quoted_with_their_own_digits():
    found = results.certificate("best/image/certificate-2000.json")
    stored = json.loads((results.STORED / "best/image/certificate-2000.json").read_text())
    value = next(s["value"] for s in stored["statements"] if s["name"] == "missing the goal")
    assert float(found["success"]) <= 1 - value < float(found["success"]) + 1e-4
    assert (found["instances"], found["iterations"], found["clip"]) == ("2000", "12", "2710")
