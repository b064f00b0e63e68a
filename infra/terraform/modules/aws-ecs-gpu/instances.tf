# Instances follow tasks: ECS raises the group when a task waits for a GPU and lowers it to none after.

resource "aws_launch_template" "this" {
  name_prefix            = "${var.name}-"
  image_id               = data.aws_ssm_parameter.machine_image.value
  instance_type          = var.gpu_type
  vpc_security_group_ids = [aws_security_group.task.id]
  update_default_version = true
  tags                   = var.tags

  user_data = base64encode(<<-EOT
    #!/bin/bash
    echo ECS_CLUSTER=${var.name} >> /etc/ecs/ecs.config
    echo ECS_ENABLE_GPU_SUPPORT=true >> /etc/ecs/ecs.config
    echo ECS_IMAGE_PULL_BEHAVIOR=prefer-cached >> /etc/ecs/ecs.config
  EOT
  )

  iam_instance_profile {
    arn = aws_iam_instance_profile.instance.arn
  }

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1 # containers use the task's role, not the instance's
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size = var.disk_gb
      volume_type = "gp3"
      throughput  = 500
      iops        = 4000
      encrypted   = true
    }
  }

  tag_specifications {
    resource_type = "instance"
    tags          = merge(var.tags, { Name = var.name })
  }
}

resource "aws_autoscaling_group" "this" {
  name_prefix           = "${var.name}-"
  min_size              = 0
  max_size              = var.max_instances
  vpc_zone_identifier   = var.subnet_ids
  protect_from_scale_in = true
  force_delete          = true # or destroy would wait for instances that are protected

  launch_template {
    id      = aws_launch_template.this.id
    version = aws_launch_template.this.latest_version
  }

  tag {
    key                 = "AmazonECSManaged"
    value               = "true"
    propagate_at_launch = true
  }

  lifecycle {
    ignore_changes = [desired_capacity] # ECS owns it
  }
}

resource "aws_ecs_capacity_provider" "this" {
  name = "${var.name}-gpu"
  tags = var.tags

  auto_scaling_group_provider {
    auto_scaling_group_arn         = aws_autoscaling_group.this.arn
    managed_termination_protection = "ENABLED"
    managed_draining               = "ENABLED"

    managed_scaling {
      status                 = "ENABLED"
      target_capacity        = 100
      instance_warmup_period = 0
    }
  }
}

resource "aws_ecs_cluster_capacity_providers" "this" {
  cluster_name       = aws_ecs_cluster.this.name
  capacity_providers = [aws_ecs_capacity_provider.this.name]
}
