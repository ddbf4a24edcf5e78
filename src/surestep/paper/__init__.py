"""The paper's five experiments, with their data and presets.

```python
import surestep as ss

config = ss.paper.preset("quadratics", "tiny")
experiment = ss.paper.build(config)
```
"""

from surestep.paper.registry import (
    NAMES,
    build,
    open_problem,
    preset,
    presets,
    read_config,
    summary,
)

__all__ = ["NAMES", "build", "open_problem", "preset", "presets", "read_config", "summary"]
