"""Is it hopeless to go on with an arm? Predictive power, and the rule is non-binding: error rates hold if it is ignored.

The estimate after all blocks, given the one now, is normal around it with variance 2 s^2 (1/n - 1/N) under a flat prior
(Spiegelhalter, Freedman and Blackburn 1986, Control. Clin. Trials 7:8; Jennison and Turnbull 2000, ch. 10)."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from runner.analysis.dunnett import critical_values
from runner.analysis.verdicts import Result, Rules

Array = NDArray[np.float64]
# An arm that goes on alone costs two launches a block, its own and the baseline's: at 1 in 5 the launches are better spent elsewhere
# (`make bench-decide`: at 1 % launch noise 0.1 costs 1.6 launches more a study and finds 0.06 verdicts more).
HOPELESS = 0.20


def chance_of_verdict(result: Result, rules: Rules) -> Array:
    """(S, A): probability that the last possible look gives any verdict. 1 where there is not enough to tell yet."""
    last = result.last
    levels = rules.levels()
    most = float(rules.most)
    n = np.maximum(last.launches, 1.0)
    ahead = np.maximum(most - n, 0.0)
    df = last.df + ahead * max(rules.family, 1)
    critical = critical_values(levels[-1], rules.family, df)
    half = critical * last.launch_sd * np.sqrt(2 / np.maximum(most, n)) + rules.gap
    sd = last.launch_sd * np.sqrt(2 * np.maximum(1 / n - 1 / np.maximum(most, n), 0.0)) + 1e-12
    estimate = last.estimate
    different = ndtr((estimate - half) / sd) + ndtr((-half - estimate) / sd)
    top, bottom = rules.margin_high - half, rules.margin_low + half
    inside = np.where(top > bottom, ndtr((top - estimate) / sd) - ndtr((bottom - estimate) / sd), 0.0)
    known = np.isfinite(result.last.low)
    return np.where(known, np.minimum(different + inside, 1.0), 1.0)
