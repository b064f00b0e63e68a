mock_provider "aws" {
  mock_data "aws_ssm_parameter" {
    defaults = { value = "ami-0123456789abcdef0" }
  }
  mock_data "aws_region" {
    defaults = { name = "us-east-1" }
  }
  mock_resource "aws_ecs_cluster" {
    defaults = { arn = "arn:aws:ecs:us-east-1:111122223333:cluster/zse" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::111122223333:role/zse" }
  }
  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::111122223333:instance-profile/zse" }
  }
  mock_resource "aws_autoscaling_group" {
    defaults = { arn = "arn:aws:autoscaling:us-east-1:111122223333:autoScalingGroup:0:autoScalingGroupName/zse" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
  }
  mock_resource "aws_appautoscaling_policy" {
    defaults = { arn = "arn:aws:autoscaling:us-east-1:111122223333:scalingPolicy:0:resource/ecs/service/zse/zse:policyName/x" }
  }
  mock_resource "aws_ecs_task_definition" {
    defaults = { arn = "arn:aws:ecs:us-east-1:111122223333:task-definition/zse:1" }
  }
  mock_resource "aws_lb" {
    defaults = {
      arn        = "arn:aws:elasticloadbalancing:us-east-1:111122223333:loadbalancer/app/zse/0123456789abcdef"
      arn_suffix = "app/zse/0123456789abcdef"
      dns_name   = "internal-zse-1.us-east-1.elb.amazonaws.com"
    }
  }
  mock_resource "aws_lb_target_group" {
    defaults = {
      arn        = "arn:aws:elasticloadbalancing:us-east-1:111122223333:targetgroup/zse/0123456789abcdef"
      arn_suffix = "targetgroup/zse/0123456789abcdef"
    }
  }
}

variables {
  vpc_id        = "vpc-0123456789abcdef0"
  subnet_ids    = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
  image         = "111122223333.dkr.ecr.us-east-1.amazonaws.com/llm:1"
  allowed_cidrs = ["10.0.0.0/16"]
}

run "sleeps_and_wakes_on_a_request_that_nobody_answered" {
  command = apply

  assert {
    condition     = aws_appautoscaling_target.this.min_capacity == 0 && aws_autoscaling_group.this.min_size == 0
    error_message = "Tasks and instances must scale to zero."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.wake[0].metric_name == "HTTPCode_ELB_503_Count"
    error_message = "The load balancer's own 503 wakes the service."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.sleep[0].evaluation_periods == 10
    error_message = "600 s are ten points."
  }
  assert {
    condition     = alltrue([for step in aws_appautoscaling_policy.sleep[0].step_scaling_policy_configuration[0].step_adjustment : step.scaling_adjustment == 0])
    error_message = "Sleep means no task."
  }
  assert {
    condition     = aws_lb_target_group.this.health_check[0].path == "/health/ready"
    error_message = "Traffic waits for the model."
  }
  assert {
    condition     = jsondecode(aws_ecs_task_definition.this.container_definitions)[0].resourceRequirements == [{ type = "GPU", value = "1" }]
    error_message = "The task needs a GPU."
  }
  assert {
    condition     = aws_lb.this.internal == true
    error_message = "It is not public unless it is said."
  }
  assert {
    condition     = length(aws_iam_role_policy.task) == 0
    error_message = "Without a model address the server needs nothing."
  }
  assert {
    condition     = output.url == "http://internal-zse-1.us-east-1.elb.amazonaws.com"
    error_message = "The URL is an output."
  }
}

run "streams_from_s3_with_secrets_behind_tls" {
  command = apply

  variables {
    public          = true
    env             = { ZSE_PUBLIC = "1" }
    certificate_arn = "arn:aws:acm:us-east-1:111122223333:certificate/00000000-0000-0000-0000-000000000001"
    model_url       = "s3://models/llm.zse"
    max_instances   = 3
    secrets = {
      HF_TOKEN = "arn:aws:secretsmanager:us-east-1:111122223333:secret:hub-AbCdEf:token::"
    }
  }

  assert {
    condition     = jsondecode(aws_iam_role_policy.task[0].policy).Statement[0].Resource[0] == "arn:aws:s3:::models/llm.zse"
    error_message = "The server may read its model and nothing else."
  }
  assert {
    condition     = jsondecode(aws_iam_role_policy.execution[0].policy).Statement[0].Resource[0] == "arn:aws:secretsmanager:us-east-1:111122223333:secret:hub-AbCdEf"
    error_message = "The secret is read at the start of a task."
  }
  assert {
    condition     = aws_lb_listener.this.protocol == "HTTPS"
    error_message = "Public means TLS."
  }
  assert {
    condition     = length(aws_appautoscaling_policy.load) == 1
    error_message = "More than one task scales by load."
  }
}

run "refuses_to_be_public_in_plain_text" {
  command = plan

  variables {
    public = true
    env    = { ZSE_PUBLIC = "1" }
  }

  expect_failures = [aws_lb.this]
}

run "refuses_a_gpu_that_is_too_old" {
  command = plan

  variables {
    gpu_type = "g4dn.xlarge"
  }

  expect_failures = [var.gpu_type]
}
