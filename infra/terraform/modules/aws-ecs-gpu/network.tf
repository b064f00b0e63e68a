locals {
  has_tls       = var.certificate_arn != ""
  listener_port = local.has_tls ? 443 : 80
}

resource "aws_security_group" "load_balancer" {
  name_prefix = "${var.name}-lb-"
  description = "Load balancer of ${var.name}"
  vpc_id      = var.vpc_id
  tags        = var.tags

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = toset(var.allowed_cidrs)

  security_group_id = aws_security_group.load_balancer.id
  description       = "Clients"
  ip_protocol       = "tcp"
  from_port         = local.listener_port
  to_port           = local.listener_port
  cidr_ipv4         = strcontains(each.value, ":") ? null : each.value
  cidr_ipv6         = strcontains(each.value, ":") ? each.value : null
}

resource "aws_vpc_security_group_egress_rule" "load_balancer" {
  security_group_id            = aws_security_group.load_balancer.id
  description                  = "Tasks"
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
  referenced_security_group_id = aws_security_group.task.id
}

resource "aws_security_group" "task" {
  name_prefix = "${var.name}-task-"
  description = "Tasks and instances of ${var.name}"
  vpc_id      = var.vpc_id
  tags        = var.tags

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "task" {
  security_group_id            = aws_security_group.task.id
  description                  = "Load balancer"
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
  referenced_security_group_id = aws_security_group.load_balancer.id
}

resource "aws_vpc_security_group_egress_rule" "task" {
  security_group_id = aws_security_group.task.id
  description       = "Registry, storage and ECS"
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_lb" "this" {
  name               = var.name
  internal           = !var.public
  load_balancer_type = "application"
  security_groups    = [aws_security_group.load_balancer.id]
  subnets            = length(var.load_balancer_subnet_ids) == 0 ? var.subnet_ids : var.load_balancer_subnet_ids
  idle_timeout       = 900 # a streamed answer may think for a while
  tags               = var.tags

  drop_invalid_header_fields = true

  lifecycle {
    precondition {
      condition     = !var.public || local.has_tls
      error_message = "A public load balancer needs certificate_arn: prompts and keys would travel in plain text."
    }
  }
}

resource "aws_lb_target_group" "this" {
  name_prefix          = "zse-"
  vpc_id               = var.vpc_id
  port                 = var.port
  protocol             = "HTTP"
  target_type          = "ip"
  deregistration_delay = var.drain_seconds
  tags                 = var.tags

  # 503 while the weights load, then 200.
  health_check {
    path                = "/health/ready"
    matcher             = "200"
    interval            = 5
    timeout             = 4
    healthy_threshold   = 2
    unhealthy_threshold = 3
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_lb_listener" "this" {
  load_balancer_arn = aws_lb.this.arn
  port              = local.listener_port
  protocol          = local.has_tls ? "HTTPS" : "HTTP"
  certificate_arn   = local.has_tls ? var.certificate_arn : null
  ssl_policy        = local.has_tls ? "ELBSecurityPolicy-TLS13-1-2-2021-06" : null
  tags              = var.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this.arn
  }
}
