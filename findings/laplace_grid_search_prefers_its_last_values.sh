#!/usr/bin/env bash
# Question: Which prior precision does laplace-torch choose by marginal likelihood and by grid search on
#   validation log-loss (a last layer on the digits of scikit-learn), and what log-loss do they have?
# Expected (the logged guess): A factor of 10 between them, log-loss within 0.01.
# Observed: Grid search ends at 10,000, the end of its grid, with the test log-loss of the network without any
#   posterior (1.25); marginal likelihood has 0.77. The running loss is not reset between the values of the
#   grid, so each value is judged by the mean over itself and all smaller ones: of values from uselessly small
#   to large, this mean falls to the end. A loss that is a plain function is computed per value and gives 0.77.
# Versions: laplace-torch 0.3, torch 2.15.0, scikit-learn 1.9.1, numpy 2.4.6
set -euo pipefail
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install() {  # folder, packages
    local env="$dir/$1"; shift
    if command -v uv >/dev/null; then uv venv -q --python 3.11 "$env" && uv pip install -q --python "$env/bin/python" "$@"
    else python3 -m venv "$env" && "$env/bin/pip" install -q "$@"; fi
}
install v laplace-torch==0.3 torch==2.15.0 scikit-learn==1.9.1 numpy==2.4.6
"$dir/v/bin/python" -W ignore - <<'PY'
import sys
from importlib.metadata import version
import torch
import torch.nn.functional as F
from laplace import Laplace
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
print("laplace-torch", version("laplace-torch"), "torch", torch.__version__)
torch.set_num_threads(1)
torch.manual_seed(0)
x, y = (torch.tensor(a) for a in load_digits(return_X_y=True))
order = torch.randperm(len(x))
x, y = (x[order] / 16).float() + 0.35 * torch.randn(x.shape), y[order]
train, check, test = slice(0, 600), slice(600, 900), slice(900, None)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32), nn.Linear(32, 10))
optimizer = torch.optim.Adam(net.parameters(), 2e-3)
for _ in range(60):
    for part in torch.randperm(600).split(64):
        optimizer.zero_grad()
        F.cross_entropy(net(x[part]), y[part]).backward()
        optimizer.step()
net.eval()

def loss(probabilities, labels):
    return F.nll_loss(probabilities.clamp_min(1e-12).log(), labels)

with torch.no_grad():
    plain = loss(net(x[test]).softmax(1), y[test]).item()
print(f"network alone: log-loss {plain:.4f}")
posterior = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")
posterior.fit(DataLoader(TensorDataset(x[train], y[train]), batch_size=600))
loader = DataLoader(TensorDataset(x[check], y[check]), batch_size=300)

def log_loss(part):
    return loss(posterior(x[part], pred_type="glm", link_approx="probit").detach(), y[part]).item()

value = {}
for name, asked in (("marginal likelihood", dict(method="marglik")),
                    ("grid search", dict(method="gridsearch", val_loader=loader)),
                    ("grid search, a function", dict(method="gridsearch", val_loader=loader, loss=loss))):
    posterior.prior_precision = 1.0
    posterior.optimize_prior_precision(pred_type="glm", link_approx="probit", **asked)
    value[name] = posterior.prior_precision.flatten()[0].item(), log_loss(check), log_loss(test)
    print("%s: prior precision %.4g, log-loss %.4f on validation, %.4f on test" % (name, *value[name]))
best, own, given = value["marginal likelihood"], value["grid search"], value["grid search, a function"]
sys.exit(not (own[0] > 9999 and abs(own[2] - plain) < 0.02 and own[2] > best[2] + 0.2 and given[2] < best[2] + 0.05))
PY
