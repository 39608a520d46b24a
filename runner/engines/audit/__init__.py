"""What the installed engine's source says about each flag: parsed, never imported, no GPU."""

from runner.engines.audit.audit import audit
from runner.engines.audit.gates import Gate
from runner.engines.audit.packages import Package, installed_packages, packages_in, packages_of
from runner.engines.audit.report import audit_json, audit_text
from runner.engines.audit.variables import env_reads, reads_of

__all__ = [
    "Gate",
    "Package",
    "audit",
    "audit_json",
    "audit_text",
    "env_reads",
    "installed_packages",
    "packages_in",
    "packages_of",
    "reads_of",
]
