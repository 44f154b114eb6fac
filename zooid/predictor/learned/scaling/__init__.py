"""Step times of data-parallel training on n members and k nodes, learned from a few measured steps."""

from zooid.predictor.learned.scaling.scaling_model import ScalingModel, fit_scaling
from zooid.predictor.learned.scaling.step_probes import Placement, StepProbe, StepTime

__all__ = ["Placement", "ScalingModel", "StepProbe", "StepTime", "fit_scaling"]
