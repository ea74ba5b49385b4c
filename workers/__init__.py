"""Workers: what the commands of the service do."""

from workers import app_registration, git_repo

__all__ = ["app_registration", "git_repo"]
