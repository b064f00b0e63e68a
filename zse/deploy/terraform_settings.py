"""Names of the Terraform modules, and what ``--set`` knows for each."""

from __future__ import annotations

from zse.deploy.settings import Kind, Setting

GCP = "gcp-cloud-run-gpu"
AZURE = "azure-container-apps-gpu"
SAGEMAKER = "aws-sagemaker-async"
ECS = "aws-ecs-gpu"
RUNPOD = "runpod-endpoint"

SETTINGS = (
    Setting(name="project", form=GCP, is_needed=True, meaning="Google Cloud project"),
    Setting(name="invokers", form=GCP, kind=Kind.LIST, meaning="who may ask: user:ME@HOST,..."),
    Setting(name="network", form=GCP, meaning="VPC that requests go out through"),
    Setting(name="subnetwork", form=GCP, meaning="subnetwork of that VPC"),
    Setting(
        name="zonal_redundancy",
        form=GCP,
        kind=Kind.FLAG,
        meaning="GPUs reserved in a second zone, at a higher price [the module's default: false]",
    ),
    Setting(name="subscription_id", form=AZURE, is_needed=True, meaning="Azure subscription"),
    Setting(
        name="resource_group_name", form=AZURE, is_needed=True, meaning="group that exists already"
    ),
    Setting(name="registry_server", form=AZURE, meaning="private registry: NAME.azurecr.io"),
    Setting(name="registry_id", form=AZURE, meaning="its resource id; AcrPull is granted"),
    Setting(name="key_vault_id", form=AZURE, meaning="vault of the secrets; reading is granted"),
    Setting(name="log_analytics_workspace_id", form=AZURE, meaning="where logs are kept"),
    Setting(
        name="output_bucket", form=SAGEMAKER, is_needed=True, meaning="bucket that gets the answers"
    ),
    Setting(
        name="model_prefix",
        form=SAGEMAKER,
        meaning="s3://BUCKET/PREFIX/ that SageMaker copies to /opt/ml/model before the start",
    ),
    Setting(name="role_arn", form=SAGEMAKER, meaning="execution role; one is made without it"),
    Setting(name="subnets", form=SAGEMAKER, kind=Kind.LIST, meaning="subnets, to run in a VPC"),
    Setting(
        name="security_group_ids",
        form=SAGEMAKER,
        kind=Kind.LIST,
        meaning="security groups in that VPC",
    ),
    Setting(name="kms_key_arn", form=SAGEMAKER, meaning="key of the instance's storage"),
    Setting(name="vpc_id", form=ECS, is_needed=True, meaning="VPC that exists already"),
    Setting(
        name="subnet_ids",
        form=ECS,
        kind=Kind.LIST,
        is_needed=True,
        meaning="subnets of the instances, with a way to ECR, S3 and ECS",
    ),
    Setting(
        name="allowed_cidrs",
        form=ECS,
        kind=Kind.LIST,
        is_needed=True,
        meaning="address ranges that reach the load balancer",
    ),
    Setting(
        name="load_balancer_subnet_ids",
        form=ECS,
        kind=Kind.LIST,
        meaning="its subnets, in two zones [the module's default: subnet_ids]",
    ),
    Setting(name="certificate_arn", form=ECS, meaning="its certificate; plain HTTP without it"),
    Setting(
        name="endpoint_type",
        form=RUNPOD,
        choices=("LOAD_BALANCER", "QUEUE"),
        meaning="kind of the endpoint [the module's default: LOAD_BALANCER]",
    ),
    Setting(
        name="source",
        meaning="address of the modules' folder, git::https://...//infra/terraform/modules"
        " [without it the module is copied beside main.tf]",
    ),
    Setting(name="ref", meaning="version of that address: a tag or commit"),
)
