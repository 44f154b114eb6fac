"""Of a notebook, members run what the job needs: no less, so that it is the same job, and no more."""

from typing import Any

import pytest

import zooid
from zooid.coordinator.job_files.notebook_cells import statements_for


def source(*cells: str, variable: str = "job", **namespace: Any) -> str:
    text = statements_for(variable, cells, namespace)
    assert text is not None
    return "\n".join(line for line in text.splitlines() if not line.startswith("# In["))


def test_what_the_job_does_not_need_is_left_out() -> None:
    text = source("import math\nimport plots", "plots.show()\nother = slow()", "size = math.floor(2.5)", "job = size")
    assert text == "import math\nsize = math.floor(2.5)\njob = size"


def test_functions_bring_what_they_look_up_wherever_it_is_defined() -> None:
    cells = ["def build():\n    return helper(size)", "def helper(n):\n    other = n\n    return other", "size = 3"]
    text = source(*cells, "other = slow()", "job = build")
    assert "def helper(n)" in text
    assert "size = 3" in text
    assert "slow" not in text, "a local variable is not the variable of the notebook"


def test_classes_decorators_and_comprehensions_bring_theirs() -> None:
    cells = ["import functools", "BASE = dict", "SIZES = [1]", "NAMES = ['a']", "def mark(f): return f"]
    text = source(
        *cells,
        "@mark\n@functools.cache\ndef build():\n    return [n for n in SIZES]",
        "class Own(BASE):\n    def names(self):\n        return lambda: NAMES",
        "job = (build, Own)",
    )
    for line in (*cells, "@mark", "@functools.cache"):
        assert line in text
    exec(text, {})


def test_a_cell_that_was_run_again_counts_as_it_was_the_last_time() -> None:
    text = source("size = broken()", "size = 2", "job = size", "size = 3", "job = size + 1")
    assert text == "size = 3\njob = size + 1"


def test_a_value_that_is_built_in_steps_keeps_its_steps() -> None:
    cells = ["config = {}", "config['lr'] = 0.1", "words = []", "for word in 'ab':\n    words.append(word)"]
    text = source(
        *cells, "count = 0", "count += 2", "config['lr'] = 0.2; unrelated = 3", "job = (config, words, count)"
    )
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    assert namespace["job"] == ({"lr": 0.2}, ["a", "b"], 2)
    assert "unrelated" not in text


def test_settings_of_a_module_stay_also_before_it_is_imported_again() -> None:
    text = source("import torch\ntorch.set_default_dtype(torch.float64)", "import torch\njob = torch.ones")
    assert "torch.set_default_dtype(torch.float64)" in text


def test_another_loop_that_trains_is_left_out() -> None:
    loop = "for _ in range(3):\n    loss = model(data)\n    torch.clip(model)\n    losses.append(loss)"
    cells = ["import torch", "data = torch.ones(3)", "model = torch.nn.Linear(3, 1)\nlosses = []", loop]
    assert source(*cells, "job = lambda: data") == "import torch\ndata = torch.ones(3)\njob = lambda: data"


def test_calls_of_zooid_and_magics_are_left_out() -> None:
    text = source(
        "import zooid",
        "get_ipython().run_line_magic('matplotlib', 'inline')",
        "job = zooid.Job\nresult = zooid.train(job)\nzooid.plan(job)\nplanned(job)",
        zooid=zooid,
        planned=zooid.plan,
    )
    assert text == "import zooid\njob = zooid.Job"


def test_a_cell_with_an_error_of_syntax_has_bound_nothing() -> None:
    assert source("job = (", "job = 3") == "job = 3"


@pytest.mark.parametrize("cells", [[], ["other = 3"], ["get_ipython().run_cell_magic('time', '', 'job = 3')"]])
def test_a_variable_that_no_cell_binds(cells: list[str]) -> None:
    assert statements_for("job", cells, {}) is None
