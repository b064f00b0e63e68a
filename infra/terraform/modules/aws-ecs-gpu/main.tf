data "aws_ssm_parameter" "machine_image" {
  name = "/aws/service/ecs/optimized-ami/amazon-linux-2023/gpu/recommended/image_id"
}

data "aws_region" "current" {}

locals {
  # What says whom the server asks for a key; ZSE_PUBLIC that it asks nobody.
  has_keys = length(setintersection(
    ["ZSE_API_KEYS", "ZSE_API_KEYS_FILE", "ZSE_PUBLIC"], concat(keys(var.env), keys(var.secrets))
  )) > 0

  env = merge(
    {
      PORT              = tostring(var.port)
      ZSE_HOST          = "0.0.0.0"
      ZSE_DRAIN_SECONDS = tostring(var.drain_seconds - 5)
    },
    var.model_url == "" ? {} : { ZSE_MODEL = var.model_url },
    local.has_keys ? {} : { ZSE_PUBLIC = "1" }, # what stands in front asks who comes
    var.env,
  )

  container = {
    name                 = "zse"
    image                = var.image
    memory               = var.memory_mib
    essential            = true
    portMappings         = [{ containerPort = var.port, protocol = "tcp" }]
    resourceRequirements = [{ type = "GPU", value = "1" }]
    environment          = [for name, value in local.env : { name = name, value = value }]
    secrets              = [for name, arn in var.secrets : { name = name, valueFrom = arn }]
    stopTimeout          = var.drain_seconds

    logConfiguration = {
      logDriver = "awslogs"
      options = {
        "awslogs-group"         = aws_cloudwatch_log_group.this.name
        "awslogs-region"        = data.aws_region.current.name
        "awslogs-stream-prefix" = "zse"
      }
    }
  }
}

resource "aws_cloudwatch_log_group" "this" {
  name              = "/zse/${var.name}"
  retention_in_days = var.log_days
  tags              = var.tags
}

resource "aws_ecs_cluster" "this" {
  name = var.name
  tags = var.tags
}

resource "aws_ecs_task_definition" "this" {
  family                   = var.name
  requires_compatibilities = ["EC2"]
  network_mode             = "awsvpc"
  execution_role_arn       = aws_iam_role.execution.arn
  task_role_arn            = aws_iam_role.task.arn
  container_definitions    = jsonencode([local.container])
  tags                     = var.tags
}

resource "aws_ecs_service" "this" {
  name                              = var.name
  cluster                           = aws_ecs_cluster.this.id
  task_definition                   = aws_ecs_task_definition.this.arn
  desired_count                     = var.min_instances
  health_check_grace_period_seconds = var.startup_seconds
  tags                              = var.tags

  # A GPU is held until its task is gone: the successor may have to wait for it.
  deployment_minimum_healthy_percent = 0
  deployment_maximum_percent         = 100

  capacity_provider_strategy {
    capacity_provider = aws_ecs_capacity_provider.this.name
    weight            = 1
  }

  network_configuration {
    subnets         = var.subnet_ids
    security_groups = [aws_security_group.task.id]
  }

  load_balancer {
    target_group_arn = aws_lb_target_group.this.arn
    container_name   = local.container.name
    container_port   = var.port
  }

  lifecycle {
    ignore_changes = [desired_count] # the scaling policies own it

    precondition {
      condition     = var.min_instances <= var.max_instances
      error_message = "min_instances is above max_instances."
    }
    precondition {
      condition     = length(setintersection(keys(var.env), keys(var.secrets))) == 0
      error_message = "A variable is in env and in secrets."
    }
    precondition {
      condition     = !var.public || local.has_keys
      error_message = "A public server needs API keys: put ZSE_API_KEYS into secrets; ZSE_PUBLIC = \"1\" in env lets anyone in."
    }
  }

  depends_on = [aws_lb_listener.this, aws_ecs_cluster_capacity_providers.this, aws_iam_role_policy.execution]
}
