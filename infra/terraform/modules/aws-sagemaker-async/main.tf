locals {
  env = merge(
    {
      PORT              = "8080"
      ZSE_DRAIN_SECONDS = "25" # SageMaker kills 30 s after SIGTERM
    },
    contains(keys(var.env), "ZSE_API_KEYS") ? {} : { ZSE_PUBLIC = "1" }, # AWS checks who asks
    var.model_url != "" ? { ZSE_MODEL = var.model_url } : {},
    var.model_prefix != "" ? { ZSE_MODEL = "/opt/ml/model/${var.model_file}" } : {},
    var.env,
  )

  variant = "main"

  # A model cannot be changed, and its successor must exist before it goes: so its name says what it is.
  model_name = "${var.name}-${substr(sha256(jsonencode([
    var.image, local.env, var.model_prefix, local.role_arn, var.subnets, var.security_group_ids,
  ])), 0, 8)}"
}

resource "aws_sagemaker_model" "this" {
  name               = local.model_name
  execution_role_arn = local.role_arn
  tags               = var.tags

  # SageMaker runs it as: docker run IMAGE serve
  primary_container {
    image       = var.image
    environment = local.env

    dynamic "model_data_source" {
      for_each = var.model_prefix == "" ? [] : [var.model_prefix]

      content {
        s3_data_source {
          s3_uri           = model_data_source.value
          s3_data_type     = "S3Prefix"
          compression_type = "None" # no tar.gz: the file arrives as it is
        }
      }
    }
  }

  dynamic "vpc_config" {
    for_each = length(var.subnets) == 0 ? [] : [var.subnets]

    content {
      subnets            = vpc_config.value
      security_group_ids = var.security_group_ids
    }
  }

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = var.model_url == "" || var.model_prefix == ""
      error_message = "The model comes from model_url or from model_prefix, not from both."
    }
    precondition {
      condition     = (length(var.subnets) == 0) == (length(var.security_group_ids) == 0)
      error_message = "A VPC needs subnets and security_group_ids."
    }
  }

  depends_on = [aws_iam_role_policy.this]
}

resource "aws_sagemaker_endpoint_configuration" "this" {
  name_prefix = "${var.name}-"
  kms_key_arn = var.kms_key_arn == "" ? null : var.kms_key_arn
  tags        = var.tags

  production_variants {
    variant_name                                      = local.variant
    model_name                                        = aws_sagemaker_model.this.name
    instance_type                                     = var.gpu_type
    initial_instance_count                            = max(1, var.min_instances) # none is not allowed at the beginning
    container_startup_health_check_timeout_in_seconds = var.startup_seconds
    model_data_download_timeout_in_seconds            = var.model_prefix == "" ? null : 3600
  }

  async_inference_config {
    output_config {
      s3_output_path  = "s3://${var.output_bucket}/${var.name}/out/"
      s3_failure_path = "s3://${var.output_bucket}/${var.name}/failed/"

      dynamic "notification_config" {
        for_each = length(local.topics) == 0 ? [] : ["topics"]

        content {
          success_topic = var.success_topic_arn == "" ? null : var.success_topic_arn
          error_topic   = var.error_topic_arn == "" ? null : var.error_topic_arn
        }
      }
    }

    client_config {
      max_concurrent_invocations_per_instance = var.concurrency
    }
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_sagemaker_endpoint" "this" {
  name                 = var.name
  endpoint_config_name = aws_sagemaker_endpoint_configuration.this.name
  tags                 = var.tags
}
