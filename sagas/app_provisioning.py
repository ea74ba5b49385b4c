"""App provisioning: a saga that creates an app's git repository and then registers the app."""

from pydantic import BaseModel, ConfigDict

from orchestrix import COMPLETED, Compensation, Saga, Step


class AppData(BaseModel):
    """What the steps leave for each other, beside whatever the client sent along."""

    model_config = ConfigDict(extra="allow")

    repoUrl: str | None = None
    executorGroup: str | None = None


APP_PROVISIONING = Saga(
    name="app",
    data=AppData,
    steps=(
        Step(
            name="createGitRepo",
            state="APP_INITIATED",
            command="cmd.createGitRepo",
            event="evt.gitRepoCreated",
            then="GIT_REPO_CREATED",
            undo=Compensation(command="cmd.deleteGitRepo", event="evt.gitRepoDeleted"),
        ),
        Step(
            name="registerApp",
            state="REGISTERING",
            command="cmd.registerApp",
            event="evt.appRegistered",
            then=COMPLETED,
            undo=Compensation(command="cmd.unregisterApp", event="evt.appUnregistered"),
        ),
    ),
    immediate={"GIT_REPO_CREATED": "REGISTERING"},
)
